"""What a micro-batch's cost depends on, for every micro-batch of a plan, in the order of training."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from dflash.batching import windows
from dflash.batching.plan import BatchPlan, IntArray, Layout, PlanRequest
from dflash.batching.segments import per_segment

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class AnchorRule:
    """How many anchors a sample gets, as the trainer draws them."""

    max_anchors: int
    anchor_stride: int
    block_size: int
    supervised_share: float = 1.0
    """of a sample's tokens; a length alone does not say which are supervised"""
    label_share: float = 1.0
    """of the block slots that have a token of the sample, those whose token is supervised"""

    def count(self, lengths: IntArray) -> IntArray:
        """int64[n]: ``min(max_anchors, ceil(valid / stride))``, valid being all supervised tokens but one."""
        valid = np.maximum(np.rint(self.supervised_share * lengths).astype(np.int64) - 1, 0)
        counted: IntArray = np.minimum(self.max_anchors, -(-valid // self.anchor_stride))
        return counted

    def labels(self, lengths: IntArray, anchors: IntArray) -> FloatArray:
        """float64[n]: expected labels of a sample whose anchors lie anywhere but on its last token.

        The block at position a has ``min(block_size - 1, length - 1 - a)``; this is the mean over a.
        """
        places, most = np.maximum(lengths - 1, 1), self.block_size - 1
        cut = np.minimum(places, most)
        mean = (cut * (cut + 1) / 2 + (places - cut) * most) / places
        expected: FloatArray = self.label_share * anchors * mean
        return expected


@dataclass(frozen=True)
class BatchShapes:
    """One entry per micro-batch, each int64[b] but one, in the order of training."""

    layout: Layout
    real_tokens: IntArray
    target_tokens: IntArray
    """what the target computes on: padded tokens for the padded layout, real tokens for the packed one"""
    target_squares: IntArray
    """rows x longest^2, or the sum of squared lengths: what its attention computes on"""
    anchors: IntArray
    labels: FloatArray
    """block slots that reach the target's head; an expectation, where a plan alone is known"""
    anchor_context: IntArray
    """sum over samples of anchors x length: what the blocks' attention computes on, to a factor"""

    def __len__(self) -> int:
        return len(self.real_tokens)

    def take(self, which: slice | NDArray[np.int64]) -> BatchShapes:
        """Some of the micro-batches."""
        counts = [getattr(self, one.name)[which] for one in fields(self)[1:]]
        return BatchShapes(self.layout, *counts)


def plan_shapes(plan: BatchPlan, lengths: IntArray, request: PlanRequest, rule: AnchorRule) -> BatchShapes:
    """The shapes of all micro-batches of a plan, window after window, each window as it is handed out.

    Micro-batch j of a window goes to drafter ``j % request.drafters``.

    Args:
        lengths: int64[n], as the strategy saw them.
    """
    tokens = lengths[plan.samples]
    offsets = plan.batch_offsets
    anchors = rule.count(tokens)
    longest = per_segment(np.maximum, tokens, offsets)
    rows = np.diff(offsets)
    real = per_segment(np.add, tokens, offsets)
    packed = plan.layout == "packed"
    shapes = BatchShapes(
        layout=plan.layout,
        real_tokens=real,
        target_tokens=real if packed else rows * longest,
        target_squares=per_segment(np.add, tokens * tokens, offsets) if packed else rows * longest * longest,
        anchors=per_segment(np.add, anchors, offsets),
        labels=per_segment(np.add, np.rint(rule.labels(tokens, anchors)).astype(np.int64), offsets).astype(
            float
        ),
        anchor_context=per_segment(np.add, anchors * tokens, offsets),
    )
    order = windows.assign_all(plan, request.drafters, lengths, request.attention_length)
    return shapes.take(order.ravel())
