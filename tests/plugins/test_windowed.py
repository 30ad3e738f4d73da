from __future__ import annotations

import numpy as np
import pytest

from dflash.batching.plan import BatchPlan, PlanRequest
from dflash.batching.planning import make_plan
from dflash.errors import UsageError
from dflash.plugin_manager import PluginManager
from dflash_plugins.sorted import Sorted
from dflash_plugins.windowed import Windowed

LENGTHS = np.random.default_rng(0).integers(1, 200, 1_000)
REQUEST = PlanRequest(1_000, 0, 0, 2, 2, "pad")


def planned(pool: int) -> BatchPlan:
    return make_plan(Windowed(pool), LENGTHS, REQUEST)[0]


def lengths_of(plan: BatchPlan) -> list[list[int]]:
    return [LENGTHS[plan.batch(number)].tolist() for number in range(plan.batches) if len(plan.batch(number))]


@pytest.mark.parametrize("pool", [1, 7, 300])
def test_pools_are_stretches_of_the_shuffle(pool: int) -> None:
    pool_of = np.empty(1_000, dtype=np.int64)
    pool_of[REQUEST.rng(0).permutation(1_000)] = np.arange(1_000) // pool
    plan = planned(pool)
    pools = [set(pool_of[plan.batch(number)].tolist()) for number in range(plan.batches)]
    assert all(len(some) <= 1 for some in pools)
    assert set().union(*pools) == set(range(-(-1_000 // pool)))


def test_a_pool_is_sorted() -> None:
    batches = sorted(lengths_of(planned(1_000)), key=lambda lengths: (lengths[0], lengths[-1]))
    assert sum(batches, []) == sorted(LENGTHS.tolist())  # noqa: RUF017


def test_a_pool_of_all_samples_is_sorted_in_shuffled_order() -> None:
    plan, _ = make_plan(Sorted(order="shuffled"), LENGTHS, REQUEST)
    assert sorted(lengths_of(planned(10**6))) == sorted(lengths_of(plan))


def test_a_pool_of_one_mixes_nothing() -> None:
    assert {len(lengths) for lengths in lengths_of(planned(1))} == {1}


def test_wrong_options() -> None:
    with pytest.raises(UsageError, match="strategy 'windowed': pool=0: expected at least 1"):
        PluginManager().arms("windowed:pool=0")
