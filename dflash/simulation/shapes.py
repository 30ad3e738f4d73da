"""What a micro-batch's cost depends on, for every micro-batch of a plan, in the order of training."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from dflash.batching import windows
from dflash.batching.plan import BatchPlan, IntArray, PlanRequest
from dflash.batching.segments import per_segment

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class AnchorRule:
    """How many anchors a sample gets, as the trainer draws them."""

    max_anchors: int
    anchor_stride: int
    block_size: int

    def count(self, lengths: IntArray) -> IntArray:
        """int64[n]: anchors of samples that are supervised throughout, ``min(max, ceil((len - 1) / stride))``."""
        valid = np.maximum(lengths - 1, 0)
        return np.minimum(self.max_anchors, -(-valid // self.anchor_stride))


@dataclass(frozen=True)
class BatchShapes:
    """One entry per micro-batch, each int64[b]. Shapes of a plan stand in training order."""

    real_tokens: IntArray
    target_tokens: IntArray
    """what the target computes on: padded tokens for the padded layout, real tokens for the packed one"""
    target_squares: IntArray
    """rows x longest^2, or the sum of squared lengths: what its attention computes on"""
    anchors: IntArray
    anchor_context: IntArray
    """sum over samples of anchors x length: what the blocks' attention computes on, to a factor"""

    def __len__(self) -> int:
        return len(self.real_tokens)

    def take(self, which: slice | NDArray[np.int64]) -> BatchShapes:
        """Some of the micro-batches."""
        return BatchShapes(*(getattr(self, one.name)[which] for one in fields(self)))


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
        real_tokens=real,
        target_tokens=real if packed else rows * longest,
        target_squares=per_segment(np.add, tokens * tokens, offsets) if packed else rows * longest * longest,
        anchors=per_segment(np.add, anchors, offsets),
        anchor_context=per_segment(np.add, anchors * tokens, offsets),
    )
    order = windows.assign_all(plan, request.drafters, lengths, request.attention_length)
    return shapes.take(order.ravel())
