"""The cost model: seconds of each piece of work as a sum of non-negative coefficients times what it holds.

A target's micro-batch costs ``a0 + a1 * tokens + a2 * squares``, a drafter's ``d0 + d1 * anchors + d2 *
labels + d3 * context tokens + d4 * anchors x context``. Coefficients come from a handful of measured
micro-batches (``fit.py``), or from a model's floating-point operations and a machine's rates
(``analytic.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.batching.plan import Layout
from dflash.simulation.shapes import BatchShapes, FloatArray


@dataclass(frozen=True)
class TargetCost:
    """Seconds of a target's forward pass."""

    fixed: float
    per_token: float
    per_square: float

    @staticmethod
    def terms(shapes: BatchShapes) -> FloatArray:
        """float64[b, 3]: what each coefficient is multiplied with; an empty micro-batch costs nothing."""
        some = shapes.target_tokens > 0
        return _columns(some, shapes.target_tokens, shapes.target_squares)

    def seconds(self, shapes: BatchShapes) -> FloatArray:
        """float64[b]."""
        return _sums(self.terms(shapes), self.fixed, self.per_token, self.per_square)


@dataclass(frozen=True)
class DrafterCost:
    """Seconds of a drafter's forward and backward pass over one micro-batch."""

    fixed: float
    per_anchor: float
    per_label: float
    per_context: float
    per_pair: float

    @staticmethod
    def terms(shapes: BatchShapes) -> FloatArray:
        """float64[b, 5]; a micro-batch without anchors costs nothing."""
        some = shapes.anchors > 0
        context = np.where(some, shapes.real_tokens, 0)
        return _columns(some, shapes.anchors, shapes.labels, context, shapes.anchor_context)

    def seconds(self, shapes: BatchShapes) -> FloatArray:
        """float64[b]."""
        each = (self.fixed, self.per_anchor, self.per_label, self.per_context, self.per_pair)
        return _sums(self.terms(shapes), *each)


@dataclass(frozen=True)
class LoadCost:
    """Seconds of reading a micro-batch's tokens and drawing its anchors."""

    fixed: float
    per_token: float

    @staticmethod
    def terms(shapes: BatchShapes) -> FloatArray:
        """float64[b, 2]."""
        return _columns(shapes.real_tokens > 0, shapes.real_tokens)

    def seconds(self, shapes: BatchShapes) -> FloatArray:
        """float64[b]."""
        return _sums(self.terms(shapes), self.fixed, self.per_token)


@dataclass(frozen=True)
class CostModel:
    """Everything that takes time in a run."""

    target: Mapping[Layout, TargetCost]
    drafter: DrafterCost
    load: LoadCost
    feature_bytes: float
    """per real token"""
    copy_bytes_per_second: float
    """one way; a micro-batch's features are copied out of the target and into the drafter"""
    optimizer_seconds: float
    """clip and step of a window"""
    reduce_latency: float
    """seconds of an all-reduce before its first byte"""
    reduce_bytes_per_second: float
    gradient_bytes: float
    cores: int | None = None
    """that all workers share; None where each has a device of its own"""
    target_slowdown: float = 1.0
    """of a target while a drafter runs, and the other way round: memory, caches, interpreter"""
    drafter_slowdown: float = 1.0
    error: float = 0.0
    """relative error of a predicted rate that the model admits to"""

    def target_seconds(self, shapes: BatchShapes) -> FloatArray:
        """float64[b]."""
        return self.target[shapes.layout].seconds(shapes)

    def copy_seconds(self, shapes: BatchShapes) -> FloatArray:
        """float64[b]: out of the target and into the drafter, during which both can go on."""
        bytes_copied = 2 * self.feature_bytes * shapes.real_tokens.astype(np.float64)
        seconds: FloatArray = bytes_copied / self.copy_bytes_per_second
        return seconds

    def commit_seconds(self, drafters: int) -> float:
        """The end of a window: a ring all-reduce over ``drafters`` (alpha-beta model), then the optimizer."""
        if drafters == 1:
            return self.optimizer_seconds
        ring = 2 * (drafters - 1) / drafters * self.gradient_bytes / self.reduce_bytes_per_second
        return self.reduce_latency + ring + self.optimizer_seconds


def _columns(*columns: NDArray[Any]) -> FloatArray:
    stacked: FloatArray = np.stack(columns, axis=1).astype(np.float64)
    return stacked


def _sums(terms: FloatArray, *coefficients: float) -> FloatArray:
    sums: FloatArray = terms @ np.array(coefficients)
    return sums
