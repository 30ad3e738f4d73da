"""Samples in order of length: next to no padding, and micro-batches that never mix lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dflash.hookspecs import StrategySpec, hookimpl

if TYPE_CHECKING:
    from dflash.batching.plan import BatchPlan, IntArray, PlanRequest


@dataclass(frozen=True)
class Sorted:
    """Ascending length, filled greedily; equal lengths change places every epoch.

    order: of the micro-batches, by length or shuffled.
    frozen: the same micro-batches in every epoch, in shuffled order whatever `order` says.
    """

    order: Literal["length", "shuffled"] = "length"
    frozen: bool = False

    def plan(self, lengths: IntArray, request: PlanRequest) -> BatchPlan:
        import numpy as np

        from dflash.batching import packing, windows

        start = np.arange(len(lengths)) if self.frozen else request.rng(0).permutation(len(lengths))
        samples = start[np.argsort(lengths[start], kind="stable")]
        batch_offsets = packing.greedy(lengths, samples, request.token_budget)
        if self.frozen and request.tail == "spread":
            # Which micro-batches are split must not depend on the epoch's order either.
            batch_offsets = windows.spread(batch_offsets, request.window_size)
        order: Literal["given", "shuffled"] = (
            "shuffled" if self.frozen or self.order == "shuffled" else "given"
        )
        return windows.build(samples, batch_offsets, lengths, request, order=order)


@hookimpl
def dflash_strategies() -> list[StrategySpec]:
    return [StrategySpec("sorted", "by length, filled greedily; fast, and never mixes lengths", Sorted)]
