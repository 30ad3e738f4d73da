"""Samples in random order: the ideal mixture, and all the padding that comes with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash.hookspecs import StrategySpec, hookimpl

if TYPE_CHECKING:
    from dflash.batching.plan import BatchPlan, IntArray, PlanRequest


@dataclass(frozen=True)
class Random:
    """A full shuffle every epoch, filled greedily."""

    def plan(self, lengths: IntArray, request: PlanRequest) -> BatchPlan:
        from dflash.batching import packing, windows

        samples = request.rng(0).permutation(len(lengths))
        batch_offsets = packing.greedy(lengths, samples, request.token_budget)
        return windows.build(samples, batch_offsets, lengths, request, order="given")

    def bucket_ends(self, lengths: IntArray, request: PlanRequest) -> IntArray:
        """One bucket of all lengths."""
        import numpy as np

        return np.array([lengths.max(initial=0)], dtype=np.int64)


@hookimpl
def dflash_strategies() -> list[StrategySpec]:
    return [StrategySpec("random", "full shuffle every epoch, filled greedily; ideal mixture, slow", Random)]
