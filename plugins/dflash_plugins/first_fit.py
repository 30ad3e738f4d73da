"""Samples packed end to end, each into the first micro-batch with room: no padding, the fullest budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash.hookspecs import StrategySpec, hookimpl

if TYPE_CHECKING:
    from dflash.batching.plan import BatchPlan, IntArray, PlanRequest


@dataclass(frozen=True)
class FirstFit:
    """A full shuffle every epoch, each sample into the first packed micro-batch with room, all shuffled."""

    def plan(self, lengths: IntArray, request: PlanRequest) -> BatchPlan:
        from dflash.batching import packing, windows

        shuffled = request.rng(0).permutation(len(lengths))
        samples, batch_offsets = packing.first_fit(lengths, shuffled, request.token_budget)
        return windows.build(samples, batch_offsets, lengths, request, layout="packed")


@hookimpl
def dflash_strategies() -> list[StrategySpec]:
    return [StrategySpec("first_fit", "no padding, first micro-batch with room; fullest, mixed", FirstFit)]
