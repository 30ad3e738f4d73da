"""Samples shuffled within buckets of similar length: little padding, and mixed over a window."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from dflash.hookspecs import StrategySpec, hookimpl

if TYPE_CHECKING:
    from dflash.batching.plan import BatchPlan, IntArray, PlanRequest


@dataclass(frozen=True)
class Bucketed:
    """Shuffled inside each bucket, filled greedily, micro-batches of all buckets mixed; every epoch anew.

    buckets: how many; fewer if the lengths do not allow so many.
    boundaries: optimal needs the fewest micro-batches for that many buckets; equal_tokens, quantile and
        equal_width give each bucket the same tokens, samples or range of lengths; 512+1024+2048 are the
        longest lengths of all buckets but the last, and say how many there are.
    windows: micro-batches of a window are drawn independently (shuffled), spread evenly over the buckets
        (stratified), or all of one bucket (synced).
    """

    buckets: int = 8
    boundaries: str = "optimal"
    windows: Literal["shuffled", "stratified", "synced"] = "shuffled"

    def __post_init__(self) -> None:
        if self.buckets < 1:
            raise ValueError(f"buckets={self.buckets}: expected at least 1")
        if self.boundaries not in ("optimal", "equal_tokens", "quantile", "equal_width"):
            _listed(self.boundaries)
            if self.buckets != Bucketed.buckets:
                raise ValueError(f"buckets={self.buckets}: leave it out where boundaries lists them")

    def bucket_ends(self, lengths: IntArray, request: PlanRequest) -> IntArray:
        """Upper ends of the buckets, int64[k], ascending; the last is at least the longest length."""
        import numpy as np

        from dflash.batching import boundaries

        match self.boundaries:
            case "optimal":
                return boundaries.optimal(lengths, request.token_budget, self.buckets)
            case "equal_tokens":
                return boundaries.equal_tokens(lengths, self.buckets)
            case "quantile":
                return boundaries.quantile(lengths, self.buckets)
            case "equal_width":
                return boundaries.equal_width(lengths, self.buckets)
        ends, longest = _listed(self.boundaries), int(lengths.max(initial=0))
        return np.array(ends if longest <= ends[-1] else [*ends, longest], dtype=np.int64)

    def plan(self, lengths: IntArray, request: PlanRequest) -> BatchPlan:
        import numpy as np

        from dflash.batching import ordering, packing, windows
        from dflash.batching.segments import grouped

        ends = self.bucket_ends(lengths, request)
        shuffled = request.rng(0).permutation(len(lengths))
        samples, bucket_offsets = grouped(shuffled, np.searchsorted(ends, lengths[shuffled]), len(ends))
        batch_offsets = packing.greedy(lengths, samples, request.token_budget, bucket_offsets)
        if self.windows == "shuffled":
            return windows.build(samples, batch_offsets, lengths, request)
        bucket = np.searchsorted(bucket_offsets, batch_offsets[:-1], side="right") - 1
        if self.windows == "stratified":
            order = ordering.stratified(bucket, request.rng(1))
        else:
            order = ordering.synced(bucket, request.window_size, request.rng(1))
        return windows.build(samples, batch_offsets, lengths, request, order=order)


def _listed(text: str) -> list[int]:
    """The lengths of `512+1024+2048`; ValueError if they are none, or do not ascend from above 0."""
    if not re.fullmatch(r"[0-9]+(\+[0-9]+)*", text):
        raise ValueError(
            f"boundaries={text}: expected optimal, equal_tokens, quantile, equal_width "
            "or lengths such as 512+1024+2048"
        )
    ends = [int(end) for end in text.split("+")]
    if any(low >= high for low, high in pairwise([0, *ends])) or ends[-1] >= 2**31:
        raise ValueError(f"boundaries={text}: expected lengths that ascend from 1 to {2**31 - 1}")
    return ends


@hookimpl
def dflash_strategies() -> list[StrategySpec]:
    return [StrategySpec("bucketed", "shuffled within buckets of similar length; fast, well mixed", Bucketed)]
