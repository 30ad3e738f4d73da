"""Planning time at the size of a real run: 902,087 samples, 49,152 tokens, windows of 32 micro-batches.

    pytest benchmarks/test_batching.py --benchmark-only

Each strategy's padding efficiency and fill stand in `extra_info`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from dflash.batching import boundaries, certificate, composition, windows
from dflash.batching.plan import BatchPlan, IntArray, PlanRequest, Strategy
from dflash.batching.planning import make_plan
from dflash_plugins.bucketed import Bucketed
from dflash_plugins.random import Random
from dflash_plugins.sorted import Sorted

BUDGET = 49_152
REQUEST = PlanRequest(BUDGET, seed=0, epoch=0, drafters=8, accumulation=4, tail="spread")
STRATEGIES: list[Strategy] = [Sorted(), Sorted(frozen=True), Random(), Bucketed(buckets=6), Bucketed()]


@pytest.fixture(scope="module")
def lengths() -> IntArray:
    """Lognormal with median 1,800 and sigma 0.6, cut to 65..8,191 tokens."""
    drawn = np.exp(np.random.default_rng(0).normal(np.log(1800), 0.6, 902_087)).astype(np.int64)
    return np.clip(drawn, 65, 8191)


@pytest.fixture(scope="module")
def planned(lengths: IntArray) -> tuple[BatchPlan, IntArray]:
    return make_plan(Random(), lengths, REQUEST)


def repeat(benchmark: BenchmarkFixture, function: Any, *args: Any) -> Any:
    return benchmark.pedantic(function, args, rounds=5, warmup_rounds=1)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_strategy_alone(benchmark: BenchmarkFixture, strategy: Strategy, lengths: IntArray) -> None:
    plan = repeat(benchmark, strategy.plan, lengths, REQUEST)
    found = composition.measure(plan, lengths)
    benchmark.extra_info["padding_efficiency"] = found.padding_efficiency
    benchmark.extra_info["fill"] = found.fill(BUDGET)
    benchmark.extra_info["micro_batches"] = plan.batches


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_certified_plan(benchmark: BenchmarkFixture, strategy: Strategy, lengths: IntArray) -> None:
    repeat(benchmark, make_plan, strategy, lengths, REQUEST)


def test_certificate(benchmark: BenchmarkFixture, planned: tuple[BatchPlan, IntArray]) -> None:
    repeat(benchmark, certificate.check, *planned, REQUEST)


def test_composition(benchmark: BenchmarkFixture, planned: tuple[BatchPlan, IntArray]) -> None:
    repeat(benchmark, composition.measure, *planned)


def test_digest(benchmark: BenchmarkFixture, planned: tuple[BatchPlan, IntArray]) -> None:
    repeat(benchmark, planned[0].digest)


@pytest.mark.parametrize("buckets", [8, 32])
def test_optimal_boundaries(benchmark: BenchmarkFixture, buckets: int, lengths: IntArray) -> None:
    repeat(benchmark, boundaries.optimal, lengths, BUDGET, buckets)


@pytest.mark.parametrize("drafters", [1, 8])
def test_assign_one_window(
    benchmark: BenchmarkFixture, drafters: int, planned: tuple[BatchPlan, IntArray]
) -> None:
    plan, used = planned
    repeat(benchmark, windows.assign, plan, 7, drafters, used, REQUEST.attention_length)
