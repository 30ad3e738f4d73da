"""What a plan is made of: measures that need no clock and have no noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dflash.batching.plan import BatchPlan, IntArray


@dataclass(frozen=True, eq=False)
class Composition:
    """Counts per micro-batch (int64[b]) and per window (int64[w]); an empty micro-batch counts zero."""

    rows: IntArray
    longest: IntArray
    real_tokens: IntArray
    padded_tokens: IntArray
    window_rows: IntArray
    window_real_tokens: IntArray
    window_padded_tokens: IntArray

    @property
    def window_mean_length(self) -> npt.NDArray[np.float64]:
        """Real tokens per sample of each window, float64[w]."""
        return self.window_real_tokens / self.window_rows

    @property
    def padding_efficiency(self) -> float:
        """Real tokens / padded tokens of the whole plan; NaN for a plan without tokens."""
        padded = int(self.padded_tokens.sum())
        return int(self.real_tokens.sum()) / padded if padded else float("nan")

    def fill(self, token_budget: int) -> float:
        """Real tokens / token budget, over the micro-batches that have samples; NaN if none has."""
        offered = int(np.count_nonzero(self.rows)) * token_budget
        return int(self.real_tokens.sum()) / offered if offered else float("nan")


def measure(plan: BatchPlan, lengths: IntArray) -> Composition:
    """Count a plan's tokens; `lengths` (int64[n]) are those that the plan was made for."""
    planned = lengths[plan.samples]
    rows = np.diff(plan.batch_offsets)
    longest = _per_segment(np.maximum, planned, plan.batch_offsets)
    real = _per_segment(np.add, planned, plan.batch_offsets)
    padded = rows * longest if plan.layout == "padded" else real
    return Composition(
        rows=rows,
        longest=longest,
        real_tokens=real,
        padded_tokens=padded,
        window_rows=_per_segment(np.add, rows, plan.window_offsets),
        window_real_tokens=_per_segment(np.add, real, plan.window_offsets),
        window_padded_tokens=_per_segment(np.add, padded, plan.window_offsets),
    )


def padding_efficiency(plan: BatchPlan, lengths: IntArray) -> float:
    """Real tokens / padded tokens of the whole epoch's plan; NaN for a plan without tokens."""
    return measure(plan, lengths).padding_efficiency


def _per_segment(reduction: np.ufunc, values: IntArray, offsets: IntArray) -> IntArray:
    """Reduce each segment of values; an empty one gives 0, where reduceat alone would give a neighbour."""
    result = np.zeros(len(offsets) - 1, dtype=np.int64)
    filled = np.flatnonzero(np.diff(offsets))
    if len(filled):
        result[filled] = reduction.reduceat(values, offsets[filled])
    return result
