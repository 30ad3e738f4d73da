"""dflash-bench as a person or a CI job meets it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import command, environment

from dflash.bench import store

FAST = ("--rounds", "1", "--windows", "3")


def test_two_strategies_are_compared(bench, small_file, tmp_path):
    result = bench("--strategy", "random,sorted", *FAST, "--config", small_file, "--json", "out.json")
    assert result.code == 0, result.err
    assert re.search(r"^random .*reference", result.out, re.MULTILINE)
    run = json.loads((tmp_path / "out.json").read_text())
    assert run.keys() >= {
        "schema_version",
        "verdict",
        "exit_code",
        "reference",
        "arms",
        "comparisons",
        "settings",
        "data",
        "machine",
    }
    assert (run["reference"], run["verdict"], run["exit_code"]) == ("random", "OK", 0)
    by_name = {arm["strategy"]: arm for arm in run["arms"]}
    assert by_name.keys() == {"random", "sorted"}
    for arm in run["arms"]:
        assert arm.keys() >= {"strategy", "options", "plugin", "metrics", "intervals"}
        assert arm["plugin"]["distribution"] == "dflash" and arm["plugin"]["version"]
        metrics = arm["metrics"]
        assert all(metrics[name] > 0 for name in ("tok_s", "padded_tok_s", "loss_tok_s", "final_loss"))
        measured = metrics["tok_s"] / metrics["padded_tok_s"]
        assert measured == pytest.approx(metrics["padding_efficiency"], rel=0.03)
        assert 0 < metrics["target_utilisation"] <= 1 and 0 < metrics["drafter_utilisation"] <= 1
        assert metrics["gradient_diversity"] >= 0.5, "two micro-batches: 1/2 for equal gradients, or above"
        assert 0 < metrics["label_coverage"] <= 1 and 0 < metrics["anchor_slot_efficiency"] <= 1
    sorted_, random = (by_name[name]["metrics"]["padding_efficiency"] for name in ("sorted", "random"))
    assert sorted_ > 0.95 > random
    (speed,) = (c for c in run["comparisons"] if c["metric"] == "tok_s")
    assert (speed["strategy"], speed["pairs"], speed["low"], speed["verdict"]) == ("sorted", 1, None, None)
    (file,) = store.paths(tmp_path / ".dflash-bench")
    stored, trials = store.load(file)
    assert json.loads(stored.to_json()) == run
    assert len(trials) == 2


def test_repeats_of_an_arm_are_equal_to_the_last_bit(bench, small_file, tmp_path):
    result = bench("-s", "bucketed:buckets=3", "--rounds", "3", "--windows", "4", "--config", small_file)
    assert result.code == 0, result.err
    (file,) = store.paths(tmp_path / ".dflash-bench")
    _, trials = store.load(file)
    assert len(trials) == 3 and len(trials[0].losses) == 4
    assert all(
        (trial.losses, trial.plan_digest) == (trials[0].losses, trials[0].plan_digest) for trial in trials
    )


def test_json_to_stdout_is_json_alone(bench, small_file):
    result = bench("-s", "random", *FAST, "--config", small_file, "--json", "-")
    assert json.loads(result.out)["exit_code"] == 0


def test_a_third_partys_strategy_is_listed_and_runs(bench, small_file, third_party):
    env = third_party("descending")
    listed = bench("plugins", "list", env=env)
    assert "descending  (dflash-strategy-descending 1.2)" in listed.out
    assert "fancy=3" in listed.out
    result = bench(
        "-s", "random,descending:fancy=4", *FAST, "--config", small_file, "--json", "out.json", env=env
    )
    assert result.code == 0, result.err
    assert "descending:fancy=4" in result.out


@pytest.mark.parametrize(("name", "reason"), [("raises", "cannot plan on Sundays"), ("repeats", "repeats")])
def test_a_strategy_that_fails_in_a_trial(bench, small_file, third_party, tmp_path, name, reason):
    """Exit 3, the strategy and the reason named, the other one's results kept."""
    env = third_party(name)
    result = bench("-s", f"random,{name}", "--rounds", "2", "--windows", "3", "--config", small_file, env=env)
    assert result.code == 3
    assert reason in result.out and "Traceback" not in result.out + result.err
    (file,) = store.paths(tmp_path / ".dflash-bench")
    run, trials = store.load(file)
    arms = {arm.strategy: arm for arm in run.arms}
    assert arms["random"].metrics["tok_s"] > 0 and arms["random"].error is None
    assert reason in arms[name].error and arms[name].metrics["tok_s"] is None
    assert [trial.ok for trial in trials if trial.arm == name] == [False], "and not tried again"
    debug = bench("-s", name, *FAST, "--config", small_file, "--debug", env=env)
    assert "Traceback" in debug.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-s", "nope"], "unknown strategy 'nope'.*bucketed, .*random, sorted"),
        (["-s", "bucketd"], "did you mean 'bucketed'"),
        (["-s", "random,,sorted"], "empty strategy name"),
        (["-s", "bucketed:bukets=3"], "no option 'bukets'; it has buckets, boundaries"),
        (["-s", "bucketed:buckets=many"], "buckets=many: expected int"),
        (["-s", "random", "--reference", "sorted"], "none of the strategies of this run"),
        (["-s", "random", "--data", "nowhere.arrow"], "nowhere.arrow"),
        (["-s", "random", "--target", "nowhere"], "nowhere"),
        (["-s", "random", "--quick", "--thorough"], "contradict"),
        (["-s", "random", "--rounds", "0"], "--rounds"),
        (["-s", "random", "--fail-on", "tok_s:abc"], "'abc' is no percentage"),
        (["-s", "random", "--fail-on", "toks:5%"], "unknown metric 'toks'"),
        (["-s", "random", "--fail-on", "bucketd.tok_s:5%"], "did you mean 'bucketed'"),
        (["-s", "random", "--floor", "2"], "--floor: '2' is no percentage"),
        (["-s", "random", "--max-time", "soon"], "'soon' is no time"),
        (["-s", "random", "--against", "main", "--reference", "random"], "contradict"),
        (["-s", "random", "--against", "no-such-revision"], "git|no such commit"),
        (["-s", "random", "-q", "-v"], "contradict"),
        (["-s", "random", "--json", "-", "--markdown", "-"], "cannot both"),
        (["show", "01ZZ"], "no run is stored"),
        (["compare", "last"], "no run is stored"),
        (["export", "csv"], "no run is stored"),
        (["baseline", "save", "main"], "no run is stored"),
        (["-s", "random", "-p", "random"], "no:NAME"),
        (["-s", "random", "-p", "no:random"], "blocked"),
        (["--wrong"], "--wrong"),
        (["nothing"], "nothing"),
    ],
)
def test_misuse_is_one_line_and_exit_2(bench, arguments, words):
    result = bench(*arguments)
    assert result.code == 2
    assert re.search(words, result.err)
    assert len(result.err.splitlines()) == 1 and not result.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-s", "random", "--fail-on", "tok_s:5%"], "tok_s is a clock, and random has no partner"),
        (["-s", "random,sorted", "--fail-on", "bucketed.tok_s:5%"], "bucketed is compared with nothing"),
        (["-s", "random", "--baseline", "main"], "no such baseline"),
        (["baseline", "show", "main"], "no such baseline"),
    ],
)
def test_a_gate_that_could_compare_nothing_is_exit_5_before_anything_runs(bench, arguments, words):
    result = bench(*arguments)
    assert result.code == 5
    assert re.search(words, result.err) and len(result.err.splitlines()) == 1


def test_a_bug_is_not_taken_for_a_regression(bench, tmp_path):
    """Python exits with 1 after an exception, and 1 is for regressions."""
    (tmp_path / "sitecustomize.py").write_text(
        "import dflash.command_line as c\ndef broken(*_): raise RuntimeError('a bug')\n"
        "c.run_command = broken\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    result = bench("--version", env={"PYTHONPATH": path})
    assert result.code == 3 and "RuntimeError: a bug" in result.err


def test_interrupt_keeps_finished_pairs_and_leaves_no_process(small_file, tmp_path):
    process = subprocess.Popen(
        command(
            "dflash-bench", "-s", "random,sorted", "--rounds", "500", "--windows", "3", "--config", small_file
        ),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for line in process.stderr:
        if line.startswith("trial 3,"):
            break
    # To the whole group, as a terminal does.
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    (file,) = store.paths(tmp_path / ".dflash-bench")
    run, trials = store.load(file)
    pairs = [trial.pair for trial in trials]
    assert run.exit_code == 130 and pairs.count(0) == 2 and len(pairs) == 2 * len(set(pairs))
    assert "interrupted" in out
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and _members(process.pid):
        time.sleep(0.05)
    assert not _members(process.pid)


def _members(group):
    """Live processes of a process group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, member_of = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(member_of) == group and state != "Z":
            found.append(stat.parent.name)
    return found


def test_help_teaches_and_both_forms_of_run_are_one(bench):
    top, run = bench("--help"), bench("run", "--help")
    assert "plugins list" in top.out and "Exit codes" in top.out
    for option in ("--rounds", "--windows", "--seed", "--data", "--token-budget", "--quick", "--thorough"):
        assert option in run.out
    assert bench("-s", "nope").err == bench("run", "-s", "nope").err


def test_light_commands_import_nothing_that_costs():
    """--help, --version and plugins list answer at once because of what they do not import."""
    for arguments in (
        ["--help"],
        ["--version"],
        ["plugins", "list"],
        *([name, "--help"] for name in ("plan", "run", "compare", "show", "baseline", "aa", "power")),
    ):
        script = (
            "import sys\nfrom dflash.bench.cli import cli\n"
            f"cli.main({arguments!r}, standalone_mode=False)\n"
            "print([m for m in ('torch', 'transformers', 'numba', 'pandas', 'pyarrow', 'scipy', 'numpy')"
            " if m in sys.modules], file=sys.stderr)"
        )
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr.strip() == "[]", arguments
