"""Planning time at the size of a real run: 902,087 samples, 49,152 tokens, windows of 32 micro-batches.

    pytest benchmarks/test_batching.py --benchmark-only

What each strategy's plan is made of stands in `extra_info`.
"""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from dflash.batching import boundaries, certificate, composition, windows
from dflash.batching.lengths import parse_lengths
from dflash.batching.plan import BatchPlan, IntArray, PlanRequest, Strategy
from dflash.batching.planning import make_plan
from dflash_plugins.bucketed import Bucketed
from dflash_plugins.first_fit import FirstFit
from dflash_plugins.packed import Packed
from dflash_plugins.random import Random
from dflash_plugins.sorted import Sorted
from dflash_plugins.step_window import StepWindow
from dflash_plugins.windowed import Windowed

BUDGET = 49_152
REQUEST = PlanRequest(BUDGET, seed=0, epoch=0, drafters=8, accumulation=4, tail="spread")
STRATEGIES: list[Strategy] = [
    Random(),
    Sorted(),
    Sorted(frozen=True),
    Bucketed(),
    Bucketed(buckets=6),
    Bucketed(buckets=6, boundaries="equal_tokens"),
    Bucketed(buckets=6, windows="stratified"),
    Bucketed(buckets=6, windows="synced"),
    Windowed(),
    StepWindow(),
    Packed(),
    FirstFit(),
]

each_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)


@pytest.fixture(scope="module")
def lengths() -> IntArray:
    """Lognormal with median 1,800 and sigma 0.6, cut to 65..8,191 tokens."""
    return parse_lengths("lognormal")


@pytest.fixture(scope="module")
def planned(lengths: IntArray) -> tuple[BatchPlan, IntArray]:
    return make_plan(Random(), lengths, REQUEST)


def repeat(benchmark: BenchmarkFixture, function: Any, *args: Any) -> Any:
    return benchmark.pedantic(function, args, rounds=5, warmup_rounds=1)  # type: ignore[no-untyped-call]


def once(benchmark: BenchmarkFixture, function: Any, *args: Any) -> Any:
    return benchmark.pedantic(function, args)  # type: ignore[no-untyped-call]


def whole_epoch(strategy: Strategy, lengths: IntArray) -> tuple[BatchPlan, IntArray, IntArray]:
    """A certified plan, the lengths in it, and who takes what of all its windows."""
    plan, used = make_plan(strategy, lengths, REQUEST)
    taken = windows.assign_all(plan, REQUEST.drafters, used, REQUEST.attention_length)
    return plan, used, taken


@each_strategy
def test_whole_epoch(benchmark: BenchmarkFixture, strategy: Strategy, lengths: IntArray) -> None:
    plan, used, _ = repeat(benchmark, whole_epoch, strategy, lengths)
    benchmark.extra_info |= composition.measure_composition(plan, used, REQUEST).metrics


@each_strategy
def test_strategy_alone(benchmark: BenchmarkFixture, strategy: Strategy, lengths: IntArray) -> None:
    repeat(benchmark, strategy.plan, lengths, REQUEST)


@each_strategy
def test_memory(benchmark: BenchmarkFixture, strategy: Strategy, lengths: IntArray) -> None:
    """The most that an epoch's arrays take above the lengths, in bytes, stands in `extra_info`."""
    whole_epoch(strategy, lengths[:1_000])  # what is compiled or imported is no array
    tracemalloc.start()
    once(benchmark, whole_epoch, strategy, lengths)
    benchmark.extra_info["peak_bytes"] = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


@each_strategy
@pytest.mark.parametrize("samples", [10**5, 10**6, 10**7])
def test_growth(benchmark: BenchmarkFixture, strategy: Strategy, samples: int) -> None:
    lengths = parse_lengths(f"lognormal:n={samples}")
    once(benchmark, whole_epoch, strategy, lengths)
    benchmark.extra_info["nanoseconds_per_sample"] = benchmark.stats["min"] / samples * 1e9  # type: ignore[index]


def test_certificate(benchmark: BenchmarkFixture, planned: tuple[BatchPlan, IntArray]) -> None:
    repeat(benchmark, certificate.check, *planned, REQUEST)


def test_composition(benchmark: BenchmarkFixture, planned: tuple[BatchPlan, IntArray]) -> None:
    plan, used = planned
    other, _ = make_plan(Random(), used, replace(REQUEST, epoch=1))
    ends = Random().bucket_ends(used, REQUEST)
    repeat(benchmark, composition.measure_composition, plan, used, REQUEST, other, ends)


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


def test_assign_all_windows(benchmark: BenchmarkFixture, planned: tuple[BatchPlan, IntArray]) -> None:
    plan, used = planned
    repeat(benchmark, windows.assign_all, plan, 8, used, REQUEST.attention_length)
