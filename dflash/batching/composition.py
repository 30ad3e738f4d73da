"""What a plan is made of: measures that need no clock and have no noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from dflash.batching import mixing, prediction, windows
from dflash.batching.plan import BatchPlan, IntArray, PlanRequest
from dflash.batching.segments import per_segment


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
    def micro_batches(self) -> int:
        """Those that have samples."""
        return int(np.count_nonzero(self.rows))

    @property
    def padding_efficiency(self) -> float:
        """Real tokens / padded tokens of the whole plan; NaN for a plan without tokens."""
        padded = int(self.padded_tokens.sum())
        return int(self.real_tokens.sum()) / padded if padded else float("nan")

    def fill(self, token_budget: int) -> float:
        """Real tokens / token budget, over the micro-batches that have samples; NaN if none has."""
        offered = self.micro_batches * token_budget
        return int(self.real_tokens.sum()) / offered if offered else float("nan")


def measure(plan: BatchPlan, lengths: IntArray) -> Composition:
    """Count a plan's tokens; `lengths` (int64[n]) are those that the plan was made for."""
    planned = lengths[plan.samples]
    rows = np.diff(plan.batch_offsets)
    longest = per_segment(np.maximum, planned, plan.batch_offsets)
    real = per_segment(np.add, planned, plan.batch_offsets)
    padded = rows * longest if plan.layout == "padded" else real
    return Composition(
        rows=rows,
        longest=longest,
        real_tokens=real,
        padded_tokens=padded,
        window_rows=per_segment(np.add, rows, plan.window_offsets),
        window_real_tokens=per_segment(np.add, real, plan.window_offsets),
        window_padded_tokens=per_segment(np.add, padded, plan.window_offsets),
    )


def padding_efficiency(plan: BatchPlan, lengths: IntArray) -> float:
    """Real tokens / padded tokens of the whole epoch's plan; NaN for a plan without tokens."""
    return measure(plan, lengths).padding_efficiency


@dataclass(frozen=True)
class Measure:
    """A number that a plan alone gives. direction is the better side."""

    name: str
    unit: str
    direction: Literal["higher", "lower", "none"]
    summary: str


_ALL = (
    Measure("padding_efficiency", "1", "higher", "real / padded tokens of the whole epoch's plan"),
    Measure("fill", "1", "higher", "real tokens / (micro-batches x token budget)"),
    Measure("windows", "1", "none", "windows per epoch"),
    Measure("micro_batches", "1", "lower", "micro-batches with samples, per epoch"),
    Measure("predicted_micro_batches", "1", "none", "those that the closed form expects of greedy filling"),
    Measure("variance_ratio", "1", "none", "variance of window mean length / of random draws (1: random)"),
    Measure("window_length_autocorrelation", "1", "none", "lag-1 autocorrelation of window mean length"),
    Measure("mate_overlap", "1", "lower", "pairs that are batch mates in two epochs / in either (1: frozen)"),
    Measure("micro_batch_length_entropy", "bits", "higher", "of length octiles in a micro-batch (3: ideal)"),
    Measure("window_length_entropy", "bits", "higher", "of length octiles in a window (3: ideal)"),
    Measure("window_token_variation", "1", "lower", "coefficient of variation of a window's real tokens"),
    Measure("straggler_ratio", "1", "lower", "costliest / mean drafter of a window, mean over windows"),
    Measure("distinct_shapes", "1", "lower", "rows x longest (padded) or tokens (packed) that differ"),
    Measure("squared_length_sum", "tokens^2", "lower", "of what the target computes, padding included"),
    Measure("largest_micro_batch", "tokens", "none", "padded or packed tokens of the largest micro-batch"),
)

#: Every measure by name, in the order in which they are shown.
MEASURES: dict[str, Measure] = {one.name: one for one in _ALL}


@dataclass(frozen=True)
class PlanMeasures:
    """Numbers by the names of MEASURES.

    One that there is nothing to take from is left out: `mate_overlap` without another epoch's plan,
    `predicted_micro_batches` without buckets. NaN is one that this plan does not define, such as the
    variance of a single window.
    """

    metrics: dict[str, float]


def measure_composition(
    plan: BatchPlan,
    lengths: IntArray,
    request: PlanRequest,
    other_epoch: BatchPlan | None = None,
    bucket_ends: IntArray | None = None,
) -> PlanMeasures:
    """All that MEASURES names, of a certified plan.

    lengths: int64[n], those that the plan was made for, as `make_plan` returns them; request: its request.
    other_epoch: the same strategy's plan of another epoch, for the overlap of batch mates.
    bucket_ends: int64[k], the strategy's buckets, from `prediction.bucket_ends`, for the prediction.

    Raises PlanError if the other plan is for other samples.
    """
    counts = measure(plan, lengths)
    planned = lengths[plan.samples]
    of_micro_batches, of_windows = mixing.length_entropy(
        planned, plan.batch_offsets, plan.batch_offsets[plan.window_offsets]
    )
    found = {
        "padding_efficiency": counts.padding_efficiency,
        "fill": counts.fill(request.token_budget),
        "windows": plan.windows,
        "micro_batches": counts.micro_batches,
        "variance_ratio": mixing.variance_ratio(planned, counts.window_rows, counts.window_real_tokens),
        "window_length_autocorrelation": mixing.lag_1_autocorrelation(counts.window_mean_length),
        "micro_batch_length_entropy": of_micro_batches,
        "window_length_entropy": of_windows,
        "window_token_variation": _variation(counts.window_real_tokens),
        "straggler_ratio": _straggler_ratio(plan, lengths, request),
        "distinct_shapes": _distinct_shapes(plan, counts),
        "squared_length_sum": _squared_length_sum(plan, planned, counts),
        "largest_micro_batch": counts.padded_tokens.max(initial=0),
    }
    if other_epoch is not None:
        found["mate_overlap"] = mixing.mate_overlap(plan, other_epoch)
    if bucket_ends is not None:
        found["predicted_micro_batches"] = prediction.micro_batches(
            lengths, request.token_budget, bucket_ends
        )
    return PlanMeasures({name: float(found[name]) for name in MEASURES if name in found})


def _variation(tokens: IntArray) -> float:
    return float(tokens.std() / tokens.mean()) if len(tokens) else float("nan")


def _straggler_ratio(plan: BatchPlan, lengths: IntArray, request: PlanRequest) -> float:
    if not plan.windows:
        return float("nan")
    costs = windows.costs(plan, lengths, request.attention_length).astype(np.float64)
    taken = windows.assign_all(plan, request.drafters, lengths, request.attention_length)
    loads = costs[taken].sum(axis=1)
    return float((loads.max(axis=1) / loads.mean(axis=1)).mean())


def _distinct_shapes(plan: BatchPlan, counts: Composition) -> int:
    shapes = counts.rows * (counts.longest.max(initial=0) + 1) + counts.longest
    if plan.layout == "packed":
        shapes = counts.real_tokens
    return len(np.unique(shapes[counts.rows > 0]))


def _squared_length_sum(plan: BatchPlan, planned: IntArray, counts: Composition) -> int:
    """Exact: a micro-batch's sum fits 64 bits, the epoch's may not."""
    if plan.layout == "padded":
        squares = counts.padded_tokens * counts.longest
    else:
        squares = per_segment(np.add, planned * planned, plan.batch_offsets)
    return sum(squares.tolist())
