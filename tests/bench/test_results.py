from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from run_records import a_run
from trial_records import measured

from dflash.bench.results import Run, Settings, Trial, lengths_fingerprint
from dflash.errors import TrialError

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


# --- runs


def test_the_json_has_the_agreed_keys_and_null_for_what_is_missing() -> None:
    run, _ = a_run({"random": 1000, "bucketed": 1100}, pairs=1, metrics={"random": {"cpu_seconds": None}})
    document = json.loads(run.to_json())
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
        "looks",
        "invalid_pairs",
        "learning",
        "baseline",
        "revision",
        "against",
        "class_key",
        "command_line",
    ]
    assert (document["schema_version"], document["verdict"], document["exit_code"]) == (2, "OK", 0)
    first = document["arms"][0]
    assert list(first)[:7] == ["strategy", "options", "plugin", "plan", "metrics", "intervals", "error"]
    assert first["plugin"] == {"distribution": "dflash", "version": "0.1.0", "file_hash": "abc"}
    assert (first["metrics"]["tok_s"], first["metrics"]["cpu_seconds"]) == (1000.0, None)
    assert (first["intervals"], first["error"]) == ({}, None)
    comparison = document["comparisons"][0]
    assert list(comparison)[:9] == [
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


def test_the_gates_of_a_run_are_its_comparisons_that_decide() -> None:
    run, _ = a_run({"random": 1000, "bucketed": 800}, pairs=10, fail_on=["tok_s:5%"])
    assert [(gate.gate, gate.verdict) for gate in run.gates] == [("tok_s:5%", "REGRESSED")]
    assert run.exit_code == 1 and len(run.comparisons) > 1


def test_intervals_are_pairs_of_numbers_and_indentation_changes_nothing() -> None:
    run, _ = a_run({"random": 1000, "bucketed": 1100})
    document = json.loads(run.to_json())
    low, high = document["arms"][0]["intervals"]["tok_s"]
    assert (low, high) == (1000.0, 1050.0), "the outermost of six trials"
    assert document == json.loads(run.to_json(indent=2))
    assert b"\n" in run.to_json(indent=2) and b"\n" not in run.to_json()
    assert msgspec.json.decode(run.to_json(), type=Run) == run


def test_json_never_holds_nan() -> None:
    run, _ = a_run({"random": 1000})
    broken: Settings = msgspec.structs.replace(run.settings, trainer={"optimizer": {"eps": [1e-8, math.nan]}})
    with pytest.raises(ValueError, match="holds nan"):
        msgspec.structs.replace(run, settings=broken).to_json()


def test_lengths_are_known_by_their_values_whatever_their_type() -> None:
    lengths = np.array([3, 1, 2], dtype=np.int64)
    same = [lengths.astype(kind) for kind in (np.int16, np.uint32, ">i8")]
    assert {lengths_fingerprint(one) for one in [lengths, *same]} == {lengths_fingerprint(lengths)}
    assert lengths_fingerprint(lengths[::-1]) != lengths_fingerprint(lengths)
