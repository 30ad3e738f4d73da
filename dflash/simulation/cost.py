"""The cost model: seconds of each piece of work as a sum of non-negative coefficients times what it holds.

A target's micro-batch costs ``a0 + a1 * tokens + a2 * squares``, a drafter's ``d0 + d1 * anchor tokens + d2 *
context tokens + d3 * anchor tokens x context``. Coefficients come from a handful of measured micro-batches
(:func:`fit`), or from a model's floating-point operations and a machine's rates (``analytic.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dflash.errors import UsageError
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
        some = (shapes.target_tokens > 0).astype(float)
        return np.stack([some, shapes.target_tokens, shapes.target_squares], axis=1).astype(float)

    def seconds(self, shapes: BatchShapes) -> FloatArray:
        """float64[b]."""
        return self.terms(shapes) @ np.array([self.fixed, self.per_token, self.per_square])


@dataclass(frozen=True)
class DrafterCost:
    """Seconds of a drafter's forward and backward pass over one micro-batch."""

    fixed: float
    per_anchor: float
    per_context: float
    per_pair: float

    @staticmethod
    def terms(shapes: BatchShapes) -> FloatArray:
        """float64[b, 4]; a micro-batch without anchors costs nothing."""
        some = (shapes.anchors > 0).astype(float)
        context = np.where(shapes.anchors > 0, shapes.real_tokens, 0)
        return np.stack([some, shapes.anchors, context, shapes.anchor_context], axis=1).astype(float)

    def seconds(self, shapes: BatchShapes) -> FloatArray:
        """float64[b]."""
        return self.terms(shapes) @ np.array([self.fixed, self.per_anchor, self.per_context, self.per_pair])


@dataclass(frozen=True)
class CostModel:
    """Everything that takes time in a run."""

    target: TargetCost
    drafter: DrafterCost
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
    target_interference: float = 1.0
    """how much slower a target is while drafters run, and the other way round; 1 on hardware of its own"""
    drafter_interference: float = 1.0

    def copy_seconds(self, shapes: BatchShapes) -> FloatArray:
        """float64[b]: one way."""
        return shapes.real_tokens * (self.feature_bytes / self.copy_bytes_per_second)

    def commit_seconds(self, drafters: int) -> float:
        """The end of a window: a ring all-reduce over ``drafters`` (alpha-beta model), then the optimizer."""
        if drafters == 1:
            return self.optimizer_seconds
        ring = 2 * (drafters - 1) / drafters * self.gradient_bytes / self.reduce_bytes_per_second
        return self.reduce_latency + ring + self.optimizer_seconds


@dataclass(frozen=True)
class Fit:
    """Fitted coefficients and how well they foretell a micro-batch that they have not seen."""

    coefficients: tuple[float, ...]
    leave_one_out: float
    """largest relative error of a micro-batch's seconds, fitted to all the others"""


def fit(terms: FloatArray, seconds: Sequence[float]) -> Fit:
    """Non-negative least squares of relative errors: ``terms`` float64[n, k], ``seconds`` n values above zero.

    Relative, because micro-batches of one plan differ tenfold and the small ones count as well.

    Raises:
        UsageError: fewer micro-batches than coefficients and one to check them by.
    """
    from scipy.optimize import nnls

    measured = np.asarray(seconds, dtype=float)
    if len(measured) <= terms.shape[1]:
        raise UsageError(
            f"{len(measured)} measured micro-batches cannot give {terms.shape[1]} coefficients: measure more"
        )
    relative = terms / measured[:, None]
    scale = relative.max(axis=0)
    scale[scale == 0] = 1.0
    relative = relative / scale

    def solve(rows: FloatArray) -> FloatArray:
        found: FloatArray = nnls(rows, np.ones(len(rows)))[0]
        return found

    everywhere = solve(relative)
    errors = [
        abs(float(relative[left] @ solve(np.delete(relative, left, axis=0))) - 1.0)
        for left in range(len(measured))
    ]
    return Fit(tuple(float(one) for one in everywhere / scale), max(errors))
