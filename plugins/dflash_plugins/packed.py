"""Samples packed end to end, window by window: no padding, an ideal mixture and even micro-batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash.hookspecs import StrategySpec, hookimpl

if TYPE_CHECKING:
    from dflash.batching.plan import BatchPlan, IntArray, PlanRequest


@dataclass(frozen=True)
class Packed:
    """A full shuffle every epoch. Each window takes as much of it as its micro-batches hold packed.

    Within a window the longest samples are dealt out first, each to the micro-batch with the fewest tokens.
    """

    def plan(self, lengths: IntArray, request: PlanRequest) -> BatchPlan:
        from dflash.batching import packing, windows

        shuffled = request.rng(0).permutation(len(lengths))
        samples, batch_offsets = packing.longest_first_windows(
            lengths, shuffled, request.token_budget, request.window_size
        )
        return windows.build(samples, batch_offsets, lengths, request, order="given", layout="packed")


@hookimpl
def dflash_strategies() -> list[StrategySpec]:
    return [StrategySpec("packed", "no padding, evenly packed windows; fast, ideal mixture", Packed)]
