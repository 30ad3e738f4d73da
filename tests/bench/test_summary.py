from __future__ import annotations

import statistics
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trial_records import duel, failed, measured

from dflash.bench.metrics import METRICS
from dflash.bench.results import Arm, Plugin
from dflash.bench.summary import filled, frame, summarise


def arms(*names: str) -> list[Arm]:
    plugin = Plugin(distribution="dflash", version="0.1.0", file_hash="abc")
    return [Arm(strategy=name, options={}, plugin=plugin, plan={"digest": "d1"}) for name in names]


@settings(deadline=None)
@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=12))
def test_an_arm_shows_the_median_and_bounds_that_are_trials(values: list[float]) -> None:
    summary = summarise([measured(pair, "random", value) for pair, value in enumerate(values)])["random"]
    assert summary.metrics["tok_s"] == pytest.approx(statistics.median(values))
    assert ("tok_s" in summary.intervals) == (len(values) >= 6)
    if len(values) == 6:
        assert summary.intervals["tok_s"] == (min(values), max(values))
    assert summary.error is None


def test_null_is_not_zero_and_a_part_of_the_trials_is_not_all_of_them() -> None:
    trials = [
        measured(0, "random", 1000, metrics={"loss_tok_s": 0.0, "gradient_diversity": 0.3}),
        measured(1, "random", 1000, metrics={"loss_tok_s": 0.0, "gradient_diversity": None}),
    ]
    metrics = summarise(trials)["random"].metrics
    assert metrics.keys() == METRICS.keys()
    assert (metrics["loss_tok_s"], metrics["gradient_diversity"], metrics["cpu_seconds"]) == (0.0, None, None)


def test_exact_metrics_and_losses_have_no_interval() -> None:
    summary = summarise([measured(pair, "random", 1000 + pair) for pair in range(8)])["random"]
    assert summary.intervals.keys() == {"tok_s", "window_seconds"}
    assert summary.metrics["padding_efficiency"] == 0.9


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"metrics": {"padding_efficiency": 0.9000000001}},
            "padding_efficiency is 0.9 in pair 0 but 0.9000000001",
        ),
        ({"plan_digest": "d2"}, "plan_digest is d1 in pair 0 but d2 in pair 2"),
        (
            {"losses": [6.0, 5.500000001]},
            "losses is [6.0, 5.5] in pair 0 but [6.0, 5.500000001] in pair 2",
        ),
    ],
)
def test_one_seed_that_gives_two_answers_is_the_arms_error(changes: dict[str, Any], words: str) -> None:
    trials = [*duel([1.0, 1.0]), measured(2, "bucketed", 1000, **changes), measured(2, "random", 1000)]
    summaries = summarise(trials)
    error = summaries["bucketed"].error
    assert error is not None
    assert error.startswith(f"bucketed: {words}")
    assert summaries["random"].error is None
    assert (summaries["bucketed"].metrics["padding_efficiency"] is None) == ("metrics" in changes)
    assert [arm.error for arm in filled(arms("random", "bucketed"), trials)] == [None, error]


def test_other_seeds_may_plan_and_learn_otherwise() -> None:
    other = {"seed": 1, "plan_digest": "d2", "losses": [7.0], "metrics": {"padding_efficiency": 0.8}}
    summary = summarise([measured(0, "random", 1000), measured(1, "random", 1000, **other)])["random"]
    assert summary.error is None
    assert summary.metrics["padding_efficiency"] == pytest.approx(0.85)


def test_a_frame_has_a_row_per_trial_and_typed_columns() -> None:
    table = frame([measured(0, "random", 1000), failed(0, "bucketed")])
    assert list(table["arm"]) == ["random", "bucketed"]
    assert list(table["tok_s"].isna()) == [False, True]
    assert {str(table[name].dtype) for name in METRICS} == {"float64"}
    assert len(frame([])) == 0


def test_a_failed_arm_keeps_the_others_results_and_an_absent_one_is_named() -> None:
    trials = [measured(0, "random", 1000), failed(0, "bucketed", "PlanError: sample 3 twice")]
    kept, broken, absent = filled(arms("random", "bucketed", "sorted"), trials)
    assert (kept.metrics["tok_s"], kept.error, kept.plan) == (1000.0, None, {"digest": "d1"})
    assert broken.error == "PlanError: sample 3 twice"
    assert absent.error == "no trial of it finished"
    assert set(broken.metrics.values()) == set(absent.metrics.values()) == {None}


def test_an_invalid_pair_is_in_no_median_but_must_repeat_the_others() -> None:
    trials = [measured(0, "random", 1000), measured(1, "random", 1100), measured(2, "random", 10)]
    (arm,) = filled(arms("random"), trials, invalid=[2])
    assert (arm.metrics["tok_s"], arm.error) == (1050.0, None)
    other = [*trials, measured(3, "random", 10, plan_digest="d2")]
    (arm,) = filled(arms("random"), other, invalid=[3])
    assert arm.error is not None and "plan_digest" in arm.error
