"""Strategies that keep the whole contract but for one rule, whose name each of them carries."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from dflash.batching import packing, windows

BROKEN = {}


def breaks(rule):
    def register(cls):
        BROKEN[cls.__name__] = rule
        return dataclass(frozen=True)(cls)

    return register


@dataclass(frozen=True)
class Sound:
    """Nothing wrong with it: shuffled, filled greedily."""

    def generator(self, request):
        return request.rng(0)

    def fill(self, lengths, order, budget):
        return packing.greedy(lengths, order, budget)

    def plan(self, lengths, request):
        order = self.generator(request).permutation(len(lengths))
        offsets = self.fill(lengths, order, request.token_budget)
        return self.finish(windows.build(order, offsets, lengths, request, order="given"), lengths)

    def finish(self, plan, lengths):
        return plan


@breaks("plans-any-lengths")
class FailsWithoutSamples(Sound):
    def generator(self, request):
        return request.rng(0)

    def plan(self, lengths, request):
        assert lengths.max() > 0
        return super().plan(lengths, request)


@breaks("plans-any-lengths")
class ReturnsLists(Sound):
    def finish(self, plan, lengths):
        return [plan.batch(number).tolist() for number in range(plan.batches)]


@breaks("plans-any-lengths")
class InventsSamples(Sound):
    def finish(self, plan, lengths):
        return replace(plan, samples=plan.samples + 1)


@breaks("plans-any-lengths")
class NumbersSamplesItself(Sound):
    def finish(self, plan, lengths):
        return replace(plan, ids=plan.ids + 100)


@breaks("exactly-once")
class Repeats(Sound):
    """The first of two samples of one length, instead of the other."""

    def finish(self, plan, lengths):
        planned = set(plan.samples.tolist())
        first = {}
        for row in sorted(planned):
            twin = first.setdefault(int(lengths[row]), row)
            if twin != row:
                return replace(plan, samples=np.where(plan.samples == row, twin, plan.samples))
        return plan


@breaks("exactly-once")
class Loses(Sound):
    """A sample of the first micro-batch that has two."""

    def finish(self, plan, lengths):
        for number in np.flatnonzero(np.diff(plan.batch_offsets) > 1)[:1]:
            start = plan.batch_offsets[number]
            offsets = plan.batch_offsets - (plan.batch_offsets > start)
            return replace(plan, samples=np.delete(plan.samples, start), batch_offsets=offsets)
        return plan


@breaks("hard-budget")
class KeepsTheOverflowingSample(Sound):
    """espnet#3090: the budget as a lower bound."""

    def fill(self, lengths, order, budget):
        return packing.greedy(lengths, order, budget + budget // 4)


@breaks("equal-windows")
class LeavesTheTailShort(Sound):
    """snowfall#152: the last rank waits for ever."""

    def plan(self, lengths, request):
        order = request.rng(0).permutation(len(lengths))
        offsets = packing.greedy(lengths, order, request.token_budget)
        ends = np.append(np.arange(0, len(offsets) - 1, request.window_size), len(offsets) - 1)
        whole = windows.build(order, offsets, lengths, replace(request, drafters=1, accumulation=1))
        return replace(whole, samples=order, batch_offsets=offsets, window_offsets=ends)


@breaks("certificate")
class WritesOffTheTailWithoutItsTokens(Sound):
    def finish(self, plan, lengths):
        ledger = plan.ledger.copy()
        ledger["tokens"] = 0
        return replace(plan, ledger=ledger)


@breaks("beyond-2-31")
class CountsIn32Bits(Sound):
    def plan(self, lengths, request):
        order = self.generator(request).permutation(len(lengths))
        ends = np.cumsum(lengths[order], dtype=np.int32).tolist()
        offsets, before = [0], 0
        for position in range(1, len(ends)):
            if ends[position] - before > request.token_budget:
                offsets.append(position)
                before = ends[position - 1]
        offsets = np.array([*offsets, len(order)] if len(order) else [0])
        return windows.build(order, offsets, lengths, request, order="given", layout="packed")


@breaks("a-times-m")
class LooksAtDrafters(Sound):
    def generator(self, request):
        return request.rng(request.drafters)


@breaks("same-bytes")
class Hashes(Sound):
    def generator(self, request):
        return request.rng(hash("a text") % 2**20)


@breaks("same-bytes")
class AsksTheSystem(Sound):
    def generator(self, request):
        return np.random.default_rng(int.from_bytes(os.urandom(8)))


@breaks("differs-by-epoch")
class ForgetsTheEpoch(Sound):
    def generator(self, request):
        return np.random.default_rng(request.seed)


@breaks("differs-by-seed")
class ForgetsTheSeed(Sound):
    def generator(self, request):
        return np.random.default_rng(request.epoch)


@breaks("seed-is-not-epoch")
class AddsSeedAndEpoch(Sound):
    def generator(self, request):
        return np.random.default_rng(request.seed + request.epoch)


@breaks("global-generators")
class SeedsNumpy(Sound):
    def generator(self, request):
        np.random.seed(request.rng(0).integers(2**32))  # noqa: NPY002
        return np.random


@breaks("global-generators")
class SeedsRandom(Sound):
    def generator(self, request):
        random.seed(str(request))
        return request.rng(0)


@breaks("lengths-untouched")
class CutsInPlace(Sound):
    def plan(self, lengths, request):
        lengths[:] = np.minimum(lengths, request.token_budget // 2)
        return super().plan(lengths, request)


@dataclass(frozen=True)
class InOrder(Sound):
    """The same whenever it is asked."""

    def generator(self, request):
        return np.random.default_rng(0)


@dataclass(frozen=True)
class InOrderByDesign(InOrder):
    same_every_epoch: ClassVar[bool] = True
