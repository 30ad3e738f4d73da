"""Samples sorted within pools of a full shuffle: little padding, and micro-batches of one length each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash.hookspecs import StrategySpec, hookimpl

if TYPE_CHECKING:
    from dflash.batching.plan import BatchPlan, IntArray, PlanRequest


@dataclass(frozen=True)
class Windowed:
    """A full shuffle cut into pools, each sorted by length and filled greedily, all micro-batches shuffled.

    pool: samples that are sorted together.
    """

    pool: int = 1_000

    def __post_init__(self) -> None:
        if self.pool < 1:
            raise ValueError(f"pool={self.pool}: expected at least 1")

    def plan(self, lengths: IntArray, request: PlanRequest) -> BatchPlan:
        import numpy as np

        from dflash.batching import packing, windows
        from dflash.batching.segments import segment_of

        shuffled = request.rng(0).permutation(len(lengths))
        pool_offsets = np.append(np.arange(0, len(lengths), self.pool), len(lengths))
        pool = segment_of(pool_offsets) << 31  # above any length
        samples = shuffled[np.argsort(pool + lengths[shuffled], kind="stable")]
        batch_offsets = packing.greedy(lengths, samples, request.token_budget, pool_offsets)
        return windows.build(samples, batch_offsets, lengths, request)


@hookimpl
def dflash_strategies() -> list[StrategySpec]:
    return [StrategySpec("windowed", "sorted within shuffled pools; fast, each micro-batch alike", Windowed)]
