"""Samples sorted within each window only: little padding, and windows as random as a full shuffle's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash.hookspecs import StrategySpec, hookimpl

if TYPE_CHECKING:
    from dflash.batching.plan import BatchPlan, IntArray, PlanRequest


@dataclass(frozen=True)
class StepWindow:
    """A full shuffle every epoch. Each window takes as much of it as its micro-batches hold when sorted.

    What an optimizer step sees is a random draw; only who sees which part of it together follows length.
    """

    def plan(self, lengths: IntArray, request: PlanRequest) -> BatchPlan:
        from dflash.batching import packing, windows

        shuffled = request.rng(0).permutation(len(lengths))
        samples, batch_offsets = packing.sorted_windows(
            lengths, shuffled, request.token_budget, request.window_size
        )
        return windows.build(samples, batch_offsets, lengths, request, order="given")


@hookimpl
def dflash_strategies() -> list[StrategySpec]:
    return [StrategySpec("step_window", "sorted within each window only; fast, ideal mixture", StepWindow)]
