"""How many micro-batches greedy filling will need, in closed form, before any plan is made."""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol, runtime_checkable

import numpy as np

from dflash.batching.plan import IntArray, PlanRequest, Strategy


@runtime_checkable
class Bucketing(Protocol):
    """A strategy that fills padded micro-batches greedily, in random order within buckets of lengths."""

    def bucket_ends(self, lengths: IntArray, request: PlanRequest) -> IntArray:
        """Upper ends of the buckets, int64[k], ascending; the last is at least the longest length."""
        ...


def bucket_ends(strategy: Strategy, lengths: IntArray, request: PlanRequest) -> IntArray | None:
    """The buckets of a strategy that can say them, else None."""
    return strategy.bucket_ends(lengths, request) if isinstance(strategy, Bucketing) else None


def micro_batches(lengths: IntArray, token_budget: int, ends: IntArray) -> float:
    """Expected number of micro-batches of lengths int64[n], filled greedily within buckets.

    A micro-batch still holds n random draws if the longest of them is at most T / n, T being the token
    budget. So E[n] = sum_{n >= 1} F(T / n)^n samples fit, F being the cumulative distribution of the
    bucket's lengths, and its N samples need N / E[n] micro-batches. What this leaves out: the sample that
    did not fit starts the next micro-batch, and is longer than most.
    """
    lengths = np.sort(lengths)
    starts = [0, *np.searchsorted(lengths, ends, side="right").tolist()]
    fills = [
        (end - start) / _samples_that_fit(lengths[start:end], token_budget)
        for start, end in pairwise(starts)
        if start < end
    ]
    return float(sum(fills))


def _samples_that_fit(lengths: IntArray, token_budget: int) -> float:
    """E[n] of one bucket's sorted lengths, summed over the runs of n that have the same F(T / n)."""
    last = np.flatnonzero(np.diff(lengths, append=0))
    share = (last + 1) / len(lengths)
    # F(T / n) is share[i] for n from below[i] + 1 to upto[i]; no micro-batch has more rows than samples.
    upto = np.minimum(token_budget // lengths[last], len(lengths))
    below = np.append(upto[1:], 0)
    whole = float(upto[-1])  # as many of the longest fit for certain
    part, q = slice(0, -1), share[:-1]
    return whole + float(((q ** (below[part] + 1.0) - q ** (upto[part] + 1.0)) / (1 - q)).sum())
