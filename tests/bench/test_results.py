from __future__ import annotations

import json
import math
import statistics
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.bench.machine import Machine
from dflash.bench.metrics import METRICS
from dflash.bench.results import Arm, Data, Plugin, Run, Settings, Trial, assemble, compare, frame, summarise
from dflash.bench.verdict import Verdict
from dflash.errors import TrialError

SETTINGS = Settings(
    token_budget=4096, accumulation=2, drafters=1, warmup_windows=2, windows=6, rounds=6, seed=0
)
DATA = Data(name="sample", fingerprint="f00d", samples=11_000, tokens=2_000_000)
MACHINE = Machine(
    cpu="cpu",
    cores=2,
    cpu_quota=None,
    memory_bytes=2**33,
    gpus=[],
    platform="Linux x86_64",
    python="3.11.9",
    versions={"torch": None},
    threads={"OMP_NUM_THREADS": "1"},
)


def measured(pair: int, arm: str, tok_s: float, **changes: Any) -> Trial:
    metrics = {
        "tok_s": tok_s,
        "window_seconds": 1000 / tok_s,
        "padding_efficiency": 0.9,
        "final_loss": 5.25,
        "peak_memory_bytes": None,
    }
    record: dict[str, Any] = {
        "pair": pair,
        "slot": 0,
        "arm": arm,
        "seed": 0,
        "status": "ok",
        "metrics": metrics | changes.pop("metrics", {}),
        "losses": [6.0, 5.5],
        "plan_digest": "d1",
    }
    return Trial(**record | changes)


def failed(pair: int, arm: str, error: str = "PlanError: sample 3 twice") -> Trial:
    return Trial(pair=pair, slot=1, arm=arm, seed=0, status="failed", error=error)


def duel(ratios: list[float], arms: tuple[str, str] = ("random", "bucketed")) -> list[Trial]:
    """Pairs of a drifting machine, in ABBA order."""
    trials = []
    for pair, ratio in enumerate(ratios):
        base = 1000.0 * 1.5**pair
        both = [measured(pair, arms[0], base), measured(pair, arms[1], base * ratio, slot=1)]
        trials += both[::-1] if pair % 2 else both
    return trials


def arm(name: str) -> Arm:
    plugin = Plugin(distribution="dflash", version="0.1.0", file_hash="abc")
    return Arm(strategy=name, options={"buckets": 8}, plugin=plugin, plan={"digest": "d1"})


def run(trials: list[Trial], *names: str, interrupted: bool = False) -> Run:
    return assemble(
        "01ARZ3NDEKTSV4RRFFQ69G5FAV",
        names[0],
        [arm(n) for n in names],
        trials,
        SETTINGS,
        DATA,
        MACHINE,
        interrupted,
    )


# --- trials


@pytest.mark.parametrize("figure", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["metrics", "losses", "stages", "steal_seconds", "load"])
def test_a_figure_that_is_not_finite_is_refused_where_it_enters(figure: float, where: str) -> None:
    changes: dict[str, Any] = {
        "metrics": {"metrics": {"final_loss": figure}},
        "losses": {"losses": [6.0, figure]},
        "stages": {"stages": {"target": {"busy": figure}}},
        "steal_seconds": {"steal_seconds": figure},
        "load": {"load": figure},
    }
    with pytest.raises(TrialError, match=r"random, pair 4, seed 0: a figure is (nan|-?inf)"):
        measured(4, "random", 1000.0, **changes[where])


def test_a_trial_that_measured_nothing_is_not_ok() -> None:
    for tok_s in (0.0, None):
        with pytest.raises(TrialError, match="no real token was measured"):
            measured(0, "random", 1.0, metrics={"tok_s": tok_s})
    for losses in ([], [None, None]):
        with pytest.raises(TrialError, match="no window had a loss"):
            measured(0, "random", 1.0, losses=losses)
    assert measured(0, "random", 1.0, losses=[None, 3.0]).ok


def test_a_failed_trial_says_why_and_an_unknown_metric_is_refused() -> None:
    with pytest.raises(TrialError, match="if, and only if"):
        Trial(pair=0, slot=0, arm="a", seed=0, status="failed")
    with pytest.raises(TrialError, match="if, and only if"):
        measured(0, "a", 1.0, error="boom")
    with pytest.raises(TrialError, match="unknown metrics toks"):
        measured(0, "a", 1.0, metrics={"toks": 1.0})


# --- arms


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
    result = run(trials, "random", "bucketed")
    assert (result.verdict, result.exit_code) == (Verdict.ERROR, 3)


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


# --- comparisons


def speed(trials: list[Trial], reference: str, metric: str = "tok_s") -> dict[str, Any]:
    found = {c.strategy: msgspec.to_builtins(c) for c in compare(trials, reference) if c.metric == metric}
    return found if len(found) > 1 else next(iter(found.values()))


def test_adjacent_trials_cancel_the_drift_of_the_machine() -> None:
    ratios = [1.21, 1.19, 1.20, 1.22, 1.18, 1.20]
    found = speed(duel(ratios), "random")
    assert found["estimate"] == pytest.approx(1.2, abs=0.005)
    assert (found["low"], found["high"]) == pytest.approx((1.18, 1.22))
    assert (found["pairs"], found["verdict"], found["reference"]) == (6, "IMPROVED", "random")
    seconds = speed(duel(ratios), "random", "window_seconds")
    assert seconds["estimate"] == pytest.approx(1 / found["estimate"])
    assert seconds["verdict"] == "IMPROVED"


def test_the_other_reference_gives_the_reciprocal_and_names_and_order_give_nothing() -> None:
    trials = duel([1.21, 1.19, 1.20, 1.22, 1.18, 1.20])
    one, other = speed(trials, "random"), speed(trials[::-1], "bucketed")
    assert one["estimate"] == pytest.approx(1 / other["estimate"])
    assert (one["low"], one["high"]) == pytest.approx((1 / other["high"], 1 / other["low"]))
    assert other["verdict"] == "REGRESSED"
    renamed = speed(duel([1.21, 1.19, 1.20, 1.22, 1.18, 1.20], arms=("zebra", "aardvark")), "zebra")
    assert {k: renamed[k] for k in ("estimate", "low", "high")} == {
        k: one[k] for k in ("estimate", "low", "high")
    }


def test_every_candidate_is_held_against_its_own_trials_of_the_reference() -> None:
    """The second candidate ran while the machine was ten times slower."""
    first = duel([1.1] * 6, arms=("random", "bucketed"))
    second = [
        msgspec.structs.replace(
            trial, pair=trial.pair + 6, metrics=trial.metrics | {"tok_s": (trial.metrics["tok_s"] or 0) / 10}
        )
        for trial in duel([0.9] * 6, arms=("random", "sorted"))
    ]
    found = speed(first + second, "random")
    assert found["bucketed"]["estimate"] == pytest.approx(1.1)
    assert found["sorted"]["estimate"] == pytest.approx(0.9)
    assert found["bucketed"]["pairs"] == found["sorted"]["pairs"] == 6


def test_a_broken_pair_does_not_count_and_no_pair_at_all_is_an_error() -> None:
    trials = [
        *duel([1.1, 1.1]),
        measured(2, "random", 1000),
        failed(2, "bucketed"),
        measured(3, "random", 9.0),
    ]
    assert speed(trials, "random")["pairs"] == 2
    nothing = speed([measured(0, "random", 1000), failed(0, "bucketed")], "random")
    assert (nothing["verdict"], nothing["estimate"], nothing["pairs"]) == ("ERROR", None, 0)


def test_what_was_not_measured_or_is_zero_has_no_ratio() -> None:
    trials = duel([1.1, 1.1])
    for name in ("loss_tok_s", "cpu_seconds"):
        found = speed(trials, "random", name)
        assert (found["estimate"], found["verdict"]) == (None, None)
        assert name in found["reason"]
    partly = [measured(0, arm, 10, metrics={"cpu_seconds": 1.0}) for arm in ("random", "bucketed")]
    assert speed([*partly, *duel([1.1, 1.1])[2:]], "random", "cpu_seconds")["estimate"] is None
    zero = {"metrics": {"loss_tok_s": 0.0}}
    zeros = [measured(0, "random", 1000, **zero), measured(0, "bucketed", 1000, **zero)]
    assert "zero" in speed(zeros, "random", "loss_tok_s")["reason"]


def test_only_clocks_are_compared_and_two_trials_of_one_arm_are_no_pair() -> None:
    metrics = [c.metric for c in compare(duel([1.0]), "random")]
    assert metrics == ["tok_s", "padded_tok_s", "loss_tok_s", "window_seconds", "cpu_seconds"]
    with pytest.raises(TrialError, match="random, pair 0, seed 0: the pair has a trial of this arm already"):
        compare([measured(0, "random", 1), measured(0, "random", 1)], "random")
    assert compare([measured(0, "random", 1)], "random") == []


# --- runs


def test_the_json_has_the_agreed_keys_and_null_for_what_is_missing() -> None:
    document = json.loads(run(duel([1.1]), "random", "bucketed").to_json())
    assert list(document) == [
        "schema_version",
        "run_id",
        "verdict",
        "exit_code",
        "reference",
        "arms",
        "comparisons",
        "settings",
        "data",
        "machine",
    ]
    assert (document["schema_version"], document["verdict"], document["exit_code"]) == (1, "OK", 0)
    first = document["arms"][0]
    assert list(first) == ["strategy", "options", "plugin", "plan", "metrics", "intervals", "error"]
    assert first["plugin"] == {"distribution": "dflash", "version": "0.1.0", "file_hash": "abc"}
    assert first["metrics"]["tok_s"] == 1000.0
    assert first["metrics"]["peak_memory_bytes"] is None
    assert (first["intervals"], first["error"], first["plan"]) == ({}, None, {"digest": "d1"})
    comparison = document["comparisons"][0]
    assert list(comparison) == [
        "strategy",
        "reference",
        "metric",
        "estimate",
        "low",
        "high",
        "pairs",
        "verdict",
        "reason",
    ]
    assert comparison["estimate"] == pytest.approx(1.1)
    assert [comparison[key] for key in ("low", "high", "pairs", "verdict")] == [None, None, 1, None]
    assert set(document["data"]) == {"name", "fingerprint", "samples", "tokens"}


def test_intervals_are_pairs_of_numbers_and_indentation_changes_nothing() -> None:
    result = run(duel([1.1] * 6), "random", "bucketed")
    document = json.loads(result.to_json())
    assert document["arms"][0]["intervals"]["tok_s"] == [1000.0, 1000.0 * 1.5**5]
    assert document == json.loads(result.to_json(indent=2))
    assert b"\n" in result.to_json(indent=2) and b"\n" not in result.to_json()
    assert msgspec.json.decode(result.to_json(), type=Run) == result


def test_json_never_holds_nan() -> None:
    result = run(duel([1.1]), "random", "bucketed")
    trainer = {"optimizer": {"eps": [1e-8, math.nan]}}
    broken = msgspec.structs.replace(result, settings=msgspec.structs.replace(SETTINGS, trainer=trainer))
    with pytest.raises(ValueError, match="holds nan"):
        broken.to_json()


@pytest.mark.parametrize(
    ("trials", "interrupted", "code", "verdict"),
    [
        (duel([0.5] * 6), False, 0, Verdict.OK),
        ([measured(0, "random", 1000), failed(0, "bucketed")], False, 3, Verdict.ERROR),
        ([measured(0, "random", 1000)], False, 3, Verdict.ERROR),
        ([], False, 5, Verdict.NO_BASELINE),
        ([failed(0, "random"), failed(0, "bucketed")], False, 3, Verdict.ERROR),
        (duel([0.5]), True, 130, Verdict.ERROR),
        ([], True, 130, Verdict.ERROR),
    ],
)
def test_a_run_without_gates_is_ok_if_its_trials_worked(
    trials: list[Trial], interrupted: bool, code: int, verdict: Verdict
) -> None:
    result = run(trials, "random", "bucketed", interrupted=interrupted)
    assert (result.exit_code, result.verdict) == (code, verdict)


def test_a_failed_arm_keeps_the_others_results_and_an_absent_one_is_named() -> None:
    trials = [measured(0, "random", 1000), failed(0, "bucketed", "PlanError: sample 3 twice")]
    result = run(trials, "random", "bucketed", "sorted")
    kept, broken, absent = result.arms
    assert (kept.metrics["tok_s"], kept.error) == (1000.0, None)
    assert broken.error == "PlanError: sample 3 twice"
    assert absent.error == "no trial of it finished"
    assert set(broken.metrics.values()) == set(absent.metrics.values()) == {None}
