"""Samples shuffled within buckets of similar length: little padding, and mixed over a window."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from dflash.hookspecs import StrategySpec, hookimpl

if TYPE_CHECKING:
    from dflash.batching.plan import BatchPlan, IntArray, PlanRequest


@dataclass(frozen=True)
class Bucketed:
    """Shuffled inside each bucket, filled greedily, micro-batches of all buckets shuffled; every epoch anew.

    buckets: how many; fewer if the lengths do not allow so many different row counts.
    boundaries: optimal needs the fewest micro-batches for that many buckets.
    """

    buckets: int = 8
    boundaries: Literal["optimal"] = "optimal"

    def __post_init__(self) -> None:
        if self.buckets < 1:
            raise ValueError(f"buckets={self.buckets}: expected at least 1")

    def plan(self, lengths: IntArray, request: PlanRequest) -> BatchPlan:
        import numpy as np

        from dflash.batching import boundaries, packing, windows

        ends = boundaries.optimal(lengths, request.token_budget, self.buckets)
        shuffled = request.rng(0).permutation(len(lengths))
        bucket = np.searchsorted(ends, lengths[shuffled])
        samples = shuffled[np.argsort(bucket, kind="stable")]
        starts = np.searchsorted(np.sort(bucket), np.arange(len(ends) + 1)).tolist()
        offsets = [np.zeros(1, dtype=np.int64)]
        for start, end in pairwise(starts):
            filled = packing.greedy(lengths, samples[start:end], request.token_budget)
            offsets.append(start + filled[1:])
        return windows.build(samples, np.concatenate(offsets), lengths, request)


@hookimpl
def dflash_strategies() -> list[StrategySpec]:
    return [StrategySpec("bucketed", "shuffled within buckets of similar length; fast, well mixed", Bucketed)]
