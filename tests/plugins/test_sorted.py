from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.batching.plan import BatchPlan, PlanRequest
from dflash.batching.planning import make_plan
from dflash_plugins.sorted import Sorted

LENGTHS = np.random.default_rng(0).integers(1, 30, 400)


def planned(strategy: Sorted, epoch: int = 0, lengths: Any = LENGTHS, tail: Any = "spread") -> BatchPlan:
    return make_plan(strategy, lengths, PlanRequest(64, 0, epoch, 3, 2, tail))[0]


def batches(plan: BatchPlan) -> list[frozenset[int]]:
    return [frozenset(plan.batch(number).tolist()) for number in range(plan.batches)]


def test_lengths_ascend() -> None:
    lengths = LENGTHS[planned(Sorted()).samples]
    assert (np.diff(lengths) >= 0).all()


def test_equal_lengths_change_places_every_epoch() -> None:
    equal = np.full(40, 5)
    first, second = (planned(Sorted(), epoch, equal).samples.tolist() for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(40))
    assert first != second
    assert first != list(range(40))


def test_shuffled_order_keeps_each_micro_batch_sorted() -> None:
    plan = planned(Sorted(order="shuffled"))
    assert all((np.diff(LENGTHS[plan.batch(number)]) >= 0).all() for number in range(plan.batches))
    longest = [LENGTHS[plan.batch(number)].max() for number in range(plan.batches)]
    assert longest != sorted(longest)


@pytest.mark.parametrize("order", ["length", "shuffled"])
@settings(deadline=None)
@given(st.lists(st.integers(1, 64), max_size=80), st.sampled_from(["spread", "pad"]))
def test_frozen_micro_batches_stay_together(order: Any, lengths: list[int], tail: Any) -> None:
    strategy = Sorted(order=order, frozen=True)
    made = [planned(strategy, epoch, np.array(lengths, dtype=np.int64), tail) for epoch in range(3)]
    assert sorted(map(sorted, batches(made[0]))) == sorted(map(sorted, batches(made[1])))
    assert set(batches(made[1])) == set(batches(made[2]))


def test_frozen_order_changes_every_epoch() -> None:
    strategy = Sorted(frozen=True)
    assert batches(planned(strategy, 0)) != batches(planned(strategy, 1))


def test_not_frozen_by_default() -> None:
    first, second = (set(batches(planned(Sorted(order="shuffled"), epoch))) for epoch in (0, 1))
    assert len(first & second) < len(first) / 2


def test_frozen_drops_whole_micro_batches_of_the_same_set() -> None:
    everything = set(batches(planned(Sorted(frozen=True), tail="pad")))
    kept = [set(batches(planned(Sorted(frozen=True), epoch, tail="drop"))) for epoch in range(3)]
    assert all(some < everything for some in kept)
    assert kept[0] != kept[1] or kept[1] != kept[2]
