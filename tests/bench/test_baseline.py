from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from run_records import a_run

from dflash.bench import baseline
from dflash.bench.baseline import Baseline, Request
from dflash.bench.baseline_gate import compare_with, differences
from dflash.bench.gates import Rules, parse_gates
from dflash.bench.results import Arm, Comparison, Data, Plugin
from dflash.errors import NoBaselineError, UsageError

DATA = Data(name="/somewhere/lengths.npy", fingerprint="f" * 64, samples=3, tokens=6, lengths="e" * 64)
REQUEST = Request(
    token_budget=100, accumulation=2, drafters=8, seed=0, epoch=0, tail="spread", overlong="error"
)
GATE = "padding_efficiency:0.1%"


def arm(name: str, **metrics: float | None) -> Arm:
    plugin = Plugin(distribution="dflash", version="1", file_hash="0")
    return Arm(strategy=name, options={}, plugin=plugin, plan={"digest": "d"}, metrics=metrics)


def stored(*arms: Arm, **others: Any) -> Baseline:
    return baseline.make(DATA, REQUEST, arms or [arm("bucketed", padding_efficiency=0.9)], **others)


def compared(
    before: Baseline, *arms: Arm, gates: tuple[str, ...] = (GATE,), **changes: Any
) -> list[Comparison]:
    facts: dict[str, Any] = {"data": DATA, "request": REQUEST} | changes
    return compare_with(before, "baseline main", arms, Rules(gates=parse_gates(gates)), **facts)


def gated(found: list[Comparison]) -> dict[str, str | None]:
    return {one.strategy: one.verdict for one in found if one.gate is not None}


@pytest.mark.parametrize(
    ("now", "verdict"),
    [(0.9, "OK"), (0.8992, "OK"), (0.891, "REGRESSED"), (0.91, "IMPROVED"), (None, "ERROR")],
)
def test_an_exact_figure_is_judged_by_one_value(now: float | None, verdict: str) -> None:
    found = compared(stored(), arm("bucketed", padding_efficiency=now))
    assert gated(found) == {"bucketed": verdict}
    assert found[0].reference == "baseline main"


def test_what_came_and_what_vanished_is_no_baseline() -> None:
    before = stored(arm("sorted", padding_efficiency=1.0), arm("bucketed", padding_efficiency=0.9))
    found = compared(before, arm("bucketed", padding_efficiency=0.9), arm("new", padding_efficiency=0.5))
    assert gated(found) == {"bucketed": "OK", "new": "NO_BASELINE", "sorted": "NO_BASELINE"}
    reasons = {one.strategy: one.reason for one in found}
    assert "was not run" in reasons["sorted"] and "not in the baseline main" in reasons["new"]
    named = compared(before, arm("bucketed", padding_efficiency=0.9), gates=("bucketed." + GATE,))
    assert gated(named) == {"bucketed": "OK"}, "a gate that names a strategy binds no other"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"data": msgspec.structs.replace(DATA, lengths="d" * 64, samples=4)},
            r"lengths eeeeeeeeeeee \(3 samp",
        ),
        ({"request": msgspec.structs.replace(REQUEST, token_budget=200)}, "token_budget 100 then, 200 now"),
        ({"request": msgspec.structs.replace(REQUEST, tail="pad")}, "tail spread then, pad now"),
    ],
)
def test_another_fingerprint_is_no_baseline_and_the_difference_is_named(
    changes: dict[str, Any], words: str
) -> None:
    found = compared(stored(), arm("bucketed", padding_efficiency=0.1), **changes)
    assert gated(found) == {"bucketed": "NO_BASELINE"}
    assert re.search(words, found[0].reason)


def test_another_numpy_is_named_beside_a_difference() -> None:
    before = stored(numpy="1.0")
    worse, same = (
        compared(before, arm("bucketed", padding_efficiency=value), numpy="2.0")[0] for value in (0.8, 0.9)
    )
    assert worse.reason.endswith("(numpy 1.0 then, 2.0 now)") and "numpy" not in same.reason


def test_a_clock_of_another_job_is_advice() -> None:
    before = stored(arm("bucketed", tok_s=1000.0, padding_efficiency=0.9))
    found = compared(before, arm("bucketed", tok_s=100.0, padding_efficiency=0.9), gates=(GATE, "tok_s:5%"))
    (clock,) = [one for one in found if one.metric == "tok_s"]
    assert (clock.gate, clock.verdict, clock.advisory) == (None, None, True)
    assert clock.estimate == pytest.approx(0.1)
    assert "false alarms" in clock.reason and "--against REV" in clock.reason


def test_trials_exact_figures_need_the_trials_settings_and_plans_do_not() -> None:
    figures = {"padding_efficiency": 0.9, "anchor_slot_efficiency": 0.8}
    before = stored(arm("bucketed", **figures), trial={"windows": 6})
    gates = (GATE, "anchor_slot_efficiency:1%")
    for trial, verdict in (({"windows": 6}, "OK"), ({"windows": 4}, "NO_BASELINE")):
        found = compared(before, arm("bucketed", **figures), gates=gates, trial=trial)
        assert {one.metric: one.verdict for one in found if one.gate} == {
            "padding_efficiency": "OK",
            "anchor_slot_efficiency": verdict,
        }
    assert differences(stored(), DATA, REQUEST, {"windows": 6})[1] == [
        "it was made from plans, without trials"
    ]


def test_a_baseline_of_a_run_holds_its_figures_and_comes_back(tmp_path: Path) -> None:
    run, _ = a_run({"random": 1000.0, "bucketed": 1100.0})
    made = baseline.of_run(run)
    path = tmp_path / "deep" / "main.json"
    baseline.write(made, path)
    assert baseline.read(path) == made
    assert made.strategies["random"].metrics["padding_efficiency"] == 0.5
    assert made.strategies["random"].clocks["tok_s"] == pytest.approx(1025.0)
    assert list(path.parent.iterdir()) == [path]


def test_failures_and_nothing_make_no_baseline() -> None:
    run, _ = a_run({"random": 1000.0, "bucketed": None})
    with pytest.raises(UsageError, match="no baseline of a failure; bucketed: "):
        baseline.of_run(run)
    with pytest.raises(UsageError, match="no baseline of nothing"):
        baseline.make(DATA, REQUEST, [])


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"baseline": "other"}', "\x80", '{"lengths": 3, "strategies": {}}']
)
def test_a_broken_file_is_a_usage_error(content: str, tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(UsageError, match="not a baseline of dflash") as raised:
        baseline.read(path)
    assert raised.value.exit_code == 2 and "\n" not in str(raised.value)


def test_a_missing_or_empty_one_fails_or_passes_as_asked(tmp_path: Path) -> None:
    empty = tmp_path / "empty.json"
    empty.write_bytes(msgspec.structs.replace(stored(), strategies={}).to_json())
    for name in (str(tmp_path / "none.json"), str(empty)):
        with pytest.raises(NoBaselineError) as raised:
            baseline.open_baseline(name, Rules(), tmp_path)
        assert raised.value.exit_code == 5
        found, use = baseline.open_baseline(name, Rules(on_missing_baseline="pass"), tmp_path)
        assert use is not None and (found is None or not found.strategies)
    assert baseline.open_baseline(None, Rules(), tmp_path) == (None, None)


def test_names_are_in_the_store_and_paths_anywhere(tmp_path: Path) -> None:
    assert baseline.location("main", tmp_path) == ("baseline main", tmp_path / "baselines" / "main.json")
    assert baseline.location("gate/b.json", tmp_path) == ("b.json", Path("gate/b.json"))


def test_changes_name_every_strategy_and_figure() -> None:
    before = stored(arm("a", padding_efficiency=0.5), arm("b", padding_efficiency=0.5))
    after = stored(arm("a", padding_efficiency=0.6), arm("c", padding_efficiency=0.5))
    lines = baseline.changes(before, after)
    assert any(line.startswith("a: padding_efficiency 0.5 then, 0.6 now") for line in lines)
    assert "b: gone" in lines and "c: new" in lines
    assert baseline.changes(before, before) == []
