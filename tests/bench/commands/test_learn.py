"""Learning on the command line: `dflash-bench learn`, and `--learning` on a run."""

from __future__ import annotations

import json
import re

import pytest

from dflash.bench import run, store
from dflash.bench.field import RunRequest
from dflash.bench.loop import NoProgress
from dflash.bench.run import run_benchmark
from dflash.errors import ExitCode
from dflash.plugin_manager import PluginManager


def test_help_and_usage_come_before_any_work(bench, small_file):
    told = bench("learn", "--help")
    assert told.code == 0
    assert "--seeds" in told.out
    refused = bench("learn", "-s", "random", "--reference", "sorted", "--config", small_file)
    assert refused.code == 2
    assert "--reference 'sorted' is none of the strategies: random" in refused.err
    assert bench("learn").code == 2


FAST = ("-s", "random,sorted", "--rounds", "1", "--windows", "3")


def test_a_run_with_learning_trials_shows_stores_and_gates_them(bench, small_file, tmp_path):
    result = bench(
        *(*FAST, "--learning", "--seeds", "2", "--config", small_file, "--json", "out.json"),
        *("--fail-on", "design_effect", "--fail-on", "sorted.final_loss:1%", "--markdown", "out.md"),
    )
    told = json.loads((tmp_path / "out.json").read_text())
    learning = told["learning"]
    assert (learning["seeds"], learning["reference"], learning["speed_measured"]) == ([0, 1], "random", True)
    rates = {arm["strategy"]: arm["metrics"]["tok_s"] for arm in told["arms"]}
    assert learning["arms"][1]["speed"] == pytest.approx(rates["sorted"] / rates["random"])
    gates = {(one["strategy"], one["metric"]): one for one in told["comparisons"] if one["gate"]}
    assert gates.keys() == {
        ("random", "design_effect"),
        ("sorted", "design_effect"),
        ("sorted", "final_loss"),
    }
    for arm in learning["arms"]:
        gate = gates[arm["strategy"], "design_effect"]
        assert gate["estimate"] == arm["metrics"]["design_effect"] and gate["tolerance"] == 0.25
    assert gates["sorted", "final_loss"]["verdict"] is None
    assert "interval needs 6" in gates["sorted", "final_loss"]["reason"]
    worse = any(one["verdict"] == "REGRESSED" for one in gates.values())
    assert result.code == told["exit_code"] == (1 if worse else 0), result.err
    assert len(re.findall(r"learning (?:random|sorted), seed [01] held-out loss", result.err)) == 4
    lines = [arm["line"] for arm in learning["arms"]]
    text = " ".join(result.out.split())
    assert all(" ".join(line.split()) in text for line in lines)
    assert (tmp_path / "out.md").read_text().count("- learning: ") == 2
    # Judged again without measuring.
    again = bench("compare", "last", "--fail-on", "design_effect", "--json", "-")
    judged = [one for one in json.loads(again.out)["comparisons"] if one["gate"]]
    assert judged == [gates["random", "design_effect"], gates["sorted", "design_effect"]]
    nothing = bench("compare", "last", "last", "--fail-on", "design_effect")
    assert nothing.code == 5 and "--learning compares strategies of one run" in " ".join(nothing.out.split())
    assert bench("show").out == result.out


def test_a_run_says_that_learning_was_not_measured(bench, small_file):
    result = bench(*FAST, "--config", small_file)
    assert result.code == 0, result.err
    assert "learning was not measured; --learning compares" in " ".join(result.out.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fail-on", "design_effect:25%"], "only learning trials measure it; add --learning"),
        (["--learning", "--against", "HEAD"], "leave out --against"),
        (["--seeds", "3"], "add --learning"),
        (["--learning", "--seeds", "0"], "--seeds"),
        (["--learning", "--fail-on", "random.final_loss:1%"], "random is compared with nothing"),
    ],
)
def test_learning_options_that_make_no_sense_are_refused(bench, small_file, arguments, words):
    result = bench(*FAST, *arguments, "--config", small_file)
    assert result.code == (5 if "nothing" in words else 2)
    assert words in result.err and not result.out


def test_ctrl_c_among_learning_trials_keeps_the_pairs(small_config, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "learning_run", interrupted)
    request = RunRequest(
        arms=PluginManager().arms("random,sorted"),
        config=small_config,
        windows=3,
        rounds=1,
        learning_seeds=1,
        directory=tmp_path / "store",
    )
    outcome = run_benchmark(request, NoProgress())
    assert outcome.run.exit_code == ExitCode.INTERRUPTED
    assert outcome.run.learning is None and len(outcome.trials) == 2
    assert store.load(outcome.stored)[0] == outcome.run
