"""All built-ins on the reference lengths, in windows of 8 drafters x 4 micro-batches.

The figures of padding, fill and micro-batches are those of an independent simulation of the same
distribution; where a strategy's figures depend on the size of a window, for windows of this size.
"""

from __future__ import annotations

from functools import cache

import pytest

from dflash.batching.composition import measure_composition
from dflash.batching.lengths import parse_lengths
from dflash.batching.plan import IntArray, PlanRequest
from dflash.batching.planning import make_plan
from dflash.batching.prediction import bucket_ends
from dflash.plugin_manager import PluginManager

BUDGET = 49_152


@cache
def lengths() -> IntArray:
    return parse_lengths("lognormal:median=1800:sigma=0.6:min=65:max=8191:n=902087")


@cache
def measured(name: str) -> dict[str, float]:
    (arm,) = PluginManager().arms(name)
    requests = [PlanRequest(BUDGET, 0, epoch, drafters=8, accumulation=4, tail="spread") for epoch in (0, 1)]
    plan, used = make_plan(arm.strategy, lengths(), requests[0])
    other, _ = make_plan(arm.strategy, lengths(), requests[1])
    ends = bucket_ends(arm.strategy, used, requests[0])
    return measure_composition(plan, used, requests[0], other, ends).metrics


@pytest.mark.parametrize(
    ("name", "efficiency", "fill", "micro_batches"),
    [
        ("sorted", 1.0, 0.971, 40_562),
        ("random", 0.4788, 0.435, 90_606),
        ("bucketed:buckets=6", 0.836, 0.818, 48_118),
        ("bucketed:buckets=6:boundaries=equal_tokens", 0.830, 0.804, 48_970),
        ("bucketed:buckets=6:boundaries=quantile", 0.800, 0.766, 51_410),
        ("bucketed:buckets=6:boundaries=equal_width", 0.794, 0.768, 51_241),
        ("bucketed:boundaries=1293+1966+2730+3780+5461", 0.836, 0.818, 48_118),
        ("windowed", 0.972, 0.934, 42_152),
        ("windowed:pool=10000", 0.997, 0.967, 40_739),
        ("step_window", 0.961, 0.932, 42_240),
        ("first_fit", 1.0, 0.998, 39_458),
    ],
)
def test_padding_as_an_independent_simulation_found_it(
    name: str, efficiency: float, fill: float, micro_batches: int
) -> None:
    found = measured(name)
    assert found["padding_efficiency"] == pytest.approx(efficiency, abs=0.001)
    assert found["fill"] == pytest.approx(fill, abs=0.001)
    assert found["micro_batches"] == pytest.approx(micro_batches, rel=0.002)


def test_packed_windows_are_full_and_even() -> None:
    """Fuller than 8 micro-batches a window, which the simulation found to fill 0.992."""
    found = measured("packed")
    assert found["padding_efficiency"] == 1
    assert 0.992 < found["fill"] < 0.998
    assert found["straggler_ratio"] < 1.01
    assert found["squared_length_sum"] == float((lengths() ** 2).sum())


@pytest.mark.parametrize("name", ["random", "step_window", "packed", "first_fit"])
def test_windows_as_random_as_independent_draws(name: str) -> None:
    found = measured(name)
    assert 0.9 < found["variance_ratio"] < 1.1
    assert abs(found["window_length_autocorrelation"]) < 0.1
    assert found["window_length_entropy"] == pytest.approx(3, abs=0.002)


def test_how_windows_take_from_buckets_moves_the_mixture_and_not_the_padding() -> None:
    shuffled, stratified, synced = (
        measured(f"bucketed:buckets=6{windows}") for windows in ("", ":windows=stratified", ":windows=synced")
    )
    for found in (stratified, synced):
        assert found["padding_efficiency"] == pytest.approx(shuffled["padding_efficiency"], abs=1e-5)
        assert found["micro_batches"] == shuffled["micro_batches"]
    assert stratified["variance_ratio"] < 2 < 10 < shuffled["variance_ratio"] < 25
    assert synced["variance_ratio"] > 300
    assert synced["straggler_ratio"] < shuffled["straggler_ratio"]


def test_optimal_boundaries_are_no_worse_than_any_rule() -> None:
    best, *rules = (
        measured(f"bucketed:buckets=6:boundaries={rule}")
        for rule in ("optimal", "equal_tokens", "quantile", "equal_width")
    )
    assert best["padding_efficiency"] >= 0.830
    assert all(best["padding_efficiency"] >= found["padding_efficiency"] for found in rules)
    assert all(best["micro_batches"] <= found["micro_batches"] for found in rules)


@pytest.mark.parametrize("rule", ["optimal", "equal_tokens", "quantile", "equal_width"])
def test_the_closed_form_predicts_greedy_buckets(rule: str) -> None:
    found = measured(f"bucketed:buckets=6:boundaries={rule}")
    assert found["predicted_micro_batches"] == pytest.approx(found["micro_batches"], rel=0.01)


def test_the_closed_form_predicts_one_wide_bucket_too_well() -> None:
    """The sample that does not fit is longer than most, and the next micro-batch starts with it."""
    found = measured("random")
    assert 1.03 < found["micro_batches"] / found["predicted_micro_batches"] < 1.06


def test_batch_mates() -> None:
    assert measured("sorted:frozen=true")["mate_overlap"] == 1
    assert 0.02 < measured("sorted")["mate_overlap"] < 0.2  # neighbours in length stay near
    others = ["random", "bucketed:buckets=6", "windowed", "step_window", "packed", "first_fit"]
    assert max(measured(name)["mate_overlap"] for name in others) < 0.01
