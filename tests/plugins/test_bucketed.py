from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from dflash.batching.boundaries import equal_tokens, equal_width, optimal, quantile
from dflash.batching.plan import BatchPlan, IntArray, PlanRequest
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
    ("boundaries", "ends"),
    [
        ("optimal", optimal(LENGTHS, 4_000, 8)),
        ("equal_tokens", equal_tokens(LENGTHS, 8)),
        ("quantile", quantile(LENGTHS, 8)),
        ("equal_width", equal_width(LENGTHS, 8)),
        ("100+200+400", np.array([100, 200, 400, LENGTHS.max()])),
        ("100+5000", np.array([100, 5_000])),
    ],
)
def test_boundaries_are_those_asked_for(boundaries: str, ends: IntArray) -> None:
    request = PlanRequest(4_000, 0, 0, 2, 2, "spread")
    strategy = Bucketed(boundaries=boundaries)
    assert strategy.bucket_ends(LENGTHS, request).tolist() == ends.tolist()
    plan, _ = make_plan(strategy, LENGTHS, request)
    bucket = np.searchsorted(ends, LENGTHS)
    assert all(np.ptp(bucket[plan.batch(number)]) == 0 for number in range(plan.batches))


@pytest.mark.parametrize("windows", ["stratified", "synced"])
def test_windows_take_other_micro_batches_not_other_samples(windows: Any) -> None:
    request = PlanRequest(4_000, 0, 0, 2, 2, "pad")
    sets = [
        sorted(sorted(plan.batch(number).tolist()) for number in range(plan.batches))
        for plan, _ in (make_plan(Bucketed(windows=name), LENGTHS, request) for name in ("shuffled", windows))
    ]
    assert sets[0] == sets[1]


def test_synced_windows_are_of_one_bucket_each() -> None:
    plan, _ = make_plan(Bucketed(windows="synced"), LENGTHS, PlanRequest(4_000, 0, 0, 2, 2, "drop"))
    buckets = [of_batch.pop() for of_batch in bucket_of(plan, 8)]
    mixed = sum(len(set(buckets[start : start + 4])) > 1 for start in range(0, len(buckets), 4))
    assert mixed <= 7  # the rests of 8 buckets
    assert plan.windows > 50


def test_stratified_windows_have_every_bucket_in_proportion() -> None:
    strategy = Bucketed(buckets=3, windows="stratified")
    plan, _ = make_plan(strategy, LENGTHS, PlanRequest(4_000, 0, 0, 8, 3, "drop"))
    buckets = np.array([of_batch.pop() for of_batch in bucket_of(plan, 3)]).reshape(-1, 24)
    counts = np.stack([(buckets == number).sum(axis=1) for number in range(3)])
    assert np.abs(counts - counts.mean(axis=1, keepdims=True)).max() <= 3
    assert counts.min() > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("buckets=0", "strategy 'bucketed': buckets=0: expected at least 1"),
        ("buckets=few", "buckets=few: expected int"),
        ("boundaries=best", r"expected optimal, equal_tokens, quantile, equal_width or .* 512\+1024\+2048"),
        ("boundaries=512+", r"boundaries=512\+: expected optimal, "),
        ("boundaries=512,1024", "unknown strategy '1024'"),
        ("boundaries=512+512", r"boundaries=512\+512: expected lengths that ascend from 1 to 2147483647"),
        ("boundaries=0+512", "expected lengths that ascend from 1"),
        ("boundaries=2147483648", "expected lengths that ascend from 1"),
        ("boundaries=512:buckets=3", "buckets=3: leave it out where boundaries lists them"),
        ("windows=sorted", r"windows=sorted: expected shuffled\|stratified\|synced"),
        ("bucket=8", "has no option 'bucket'; it has buckets, boundaries, windows"),
    ],
)
def test_wrong_options(options: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PluginManager().arms(f"bucketed:{options}")
