"""The strategy example: samples sorted by length within shuffled pools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash.hookspecs import StrategySpec, hookimpl

if TYPE_CHECKING:
    from dflash.batching.plan import BatchPlan, IntArray, PlanRequest


@dataclass(frozen=True)
class Example:
    """Shuffled every epoch, then sorted by length within each pool, filled greedily.

    pool: samples in a pool; more of them pad less and mix less.
    """

    pool: int = 1000

    def __post_init__(self) -> None:
        if self.pool < 1:
            raise ValueError(f"pool={self.pool}: expected at least 1")

    def plan(self, lengths: IntArray, request: PlanRequest) -> BatchPlan:
        # Imported here, because every plugin's module is imported to list the strategies.
        import numpy as np
        from dflash.batching import packing, windows

        shuffled = request.rng(0).permutation(len(lengths))
        pool = np.arange(len(lengths)) // self.pool
        samples = shuffled[np.lexsort((lengths[shuffled], pool))]
        batch_offsets = packing.greedy(lengths, samples, request.token_budget)
        return windows.build(samples, batch_offsets, lengths, request)


@hookimpl
def dflash_strategies() -> list[StrategySpec]:
    return [StrategySpec("example", "sorted by length within shuffled pools", Example)]
