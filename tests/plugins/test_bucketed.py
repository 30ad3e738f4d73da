from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from dflash.batching.boundaries import optimal
from dflash.batching.plan import BatchPlan, PlanRequest
from dflash.batching.planning import make_plan
from dflash.errors import UsageError
from dflash.plugin_manager import PluginManager
from dflash_plugins.bucketed import Bucketed

LENGTHS = np.clip(np.random.default_rng(0).lognormal(5, 0.7, 6_000), 8, 2_000).astype(np.int64)


def planned(epoch: int = 0, buckets: int = 8) -> BatchPlan:
    return make_plan(Bucketed(buckets=buckets), LENGTHS, PlanRequest(4_000, 0, epoch, 2, 2, "spread"))[0]


def bucket_of(plan: BatchPlan, buckets: int) -> list[set[int]]:
    bucket = np.searchsorted(optimal(LENGTHS, 4_000, buckets), LENGTHS)
    return [set(bucket[plan.batch(number)].tolist()) for number in range(plan.batches)]


@pytest.mark.parametrize("buckets", [1, 2, 8, 30])
def test_no_micro_batch_spans_two_buckets(buckets: int) -> None:
    found = bucket_of(planned(buckets=buckets), buckets)
    assert all(len(of_batch) == 1 for of_batch in found)
    assert set().union(*found) == set(range(buckets))


def test_buckets_are_mixed_over_the_epoch() -> None:
    order = [of_batch.pop() for of_batch in bucket_of(planned(), 8)]
    windows = [set(order[start : start + 4]) for start in range(0, len(order), 4)]
    assert sum(len(window) > 1 for window in windows) > 0.8 * len(windows)


def test_micro_batches_are_composed_anew_every_epoch() -> None:
    """lhotse PR#562, fairseq#2621: only the order of frozen batches changed."""

    def mates(plan: BatchPlan) -> set[tuple[int, int]]:
        batches = (np.sort(plan.batch(number)) for number in range(plan.batches))
        return {(a, b) for batch in batches for a, b in pairwise(batch.tolist())}

    first, second = mates(planned(0)), mates(planned(1))
    assert len(first & second) / len(first | second) < 0.02


def test_no_order_by_length_inside_a_micro_batch() -> None:
    """lhotse#364: sorted buckets gave a saw-tooth loss."""
    plan = planned(buckets=1)
    lengths = LENGTHS[plan.samples].astype(float)
    assert abs(np.corrcoef(lengths[:-1], lengths[1:])[0, 1]) < 0.06


def test_a_single_length_makes_a_single_bucket() -> None:
    plan, _ = make_plan(Bucketed(), np.full(100, 40), PlanRequest(400, 0, 0, 1, 1, "spread"))
    assert np.diff(plan.batch_offsets).tolist() == [10] * 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("buckets=0", "strategy 'bucketed': buckets=0: expected at least 1"),
        ("buckets=few", "buckets=few: expected int"),
        ("boundaries=best", "boundaries=best: expected optimal"),
        ("bucket=8", "has no option 'bucket'; it has buckets, boundaries"),
    ],
)
def test_wrong_options(options: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PluginManager().arms(f"bucketed:{options}")
