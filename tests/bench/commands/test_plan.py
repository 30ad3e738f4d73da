"""dflash-bench plan as a person, a script or a spreadsheet meets it."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

from dflash.batching.composition import MEASURES, measure_composition
from dflash.batching.lengths import parse_lengths
from dflash.batching.plan import PlanRequest
from dflash.batching.planning import make_plan
from dflash.bench import plan_progress
from dflash.bench.metrics import PLAN_METRICS
from dflash.bench.plan_report import show
from dflash.bench.plan_run import run_plans, samples_from_lengths
from dflash.errors import PlanError
from dflash.plugin_manager import PluginManager
from dflash_plugins.sorted import Sorted

LENGTHS = np.random.default_rng(0).integers(5, 90, 400)
TEXT = "lognormal:median=40:sigma=0.5:min=5:max=200:n=3000"
BUDGET = ("--token-budget", "400", "--drafters", "2", "--accumulation", "3")


@pytest.fixture
def lengths_file(tmp_path):
    np.save(tmp_path / "lengths.npy", LENGTHS)
    return str(tmp_path / "lengths.npy")


def test_json_is_what_the_layers_below_give(bench, lengths_file):
    result = bench(
        "plan",
        "-s",
        "random,sorted:order=shuffled",
        "--lengths",
        lengths_file,
        *BUDGET,
        "--seed",
        "5",
        "--epoch",
        "3",
        "--tail",
        "drop",
        "--json",
        "-",
    )
    assert (result.code, result.err) == (0, "")
    report = json.loads(result.out)
    assert (report["schema_version"], report["exit_code"]) == (2, 0)
    assert report["data"] == {
        "name": lengths_file,
        "fingerprint": hashlib.sha256(LENGTHS.astype("<i8").tobytes()).hexdigest(),
        "lengths": hashlib.sha256(LENGTHS.astype("<i8").tobytes()).hexdigest(),
        "samples": 400,
        "tokens": int(LENGTHS.sum()),
    }
    assert report["settings"] == {
        "token_budget": 400,
        "accumulation": 3,
        "drafters": 2,
        "seed": 5,
        "epoch": 3,
        "tail": "drop",
        "overlong": "error",
    }
    random, sorted_ = report["arms"]
    assert (random["strategy"], sorted_["strategy"]) == ("random", "sorted:order=shuffled")
    assert sorted_["options"] == {"order": "shuffled", "frozen": False}
    assert sorted_["plugin"].keys() == {"distribution", "version", "file_hash"}
    request = PlanRequest(400, 5, 3, 2, 3, "drop")
    plan, lengths = make_plan(Sorted(order="shuffled"), LENGTHS, request)
    other, _ = make_plan(Sorted(order="shuffled"), LENGTHS, PlanRequest(400, 5, 4, 2, 3, "drop"))
    tail = {"samples": len(plan.ledger), "tokens": int(plan.ledger["tokens"].sum())}
    assert tail["samples"] > 0
    nothing = {"samples": 0, "tokens": 0}
    assert sorted_["plan"] == {
        "digest": plan.digest(),
        "certified": True,
        "layout": "padded",
        "windows": plan.windows,
        "ledger": {"dropped": nothing, "cut": nothing, "tail": tail},
    }
    metrics = sorted_["metrics"]
    assert metrics.keys() == {*MEASURES, "plan_seconds"} == PLAN_METRICS.keys()
    measured = measure_composition(plan, lengths, request, other_epoch=other).metrics
    assert {name: metrics[name] for name in measured} == measured
    assert metrics["plan_seconds"] > 0 and metrics["predicted_micro_batches"] is None
    assert random["metrics"]["predicted_micro_batches"] > 0


def test_csv_says_the_same(bench, lengths_file, tmp_path):
    arguments = ("plan", "--lengths", lengths_file, *BUDGET, "--csv", "-", "--json", "plans.json")
    rows = list(csv.DictReader(io.StringIO(bench(*arguments).out)))
    arms = json.loads((tmp_path / "plans.json").read_text())["arms"]
    assert len(arms) == len(rows) >= 3
    for arm, row in zip(arms, rows, strict=True):
        assert row["strategy"] == arm["strategy"] and row["plan_digest"] == arm["plan"]["digest"]
        assert row["error"] == ""
        for name, value in arm["metrics"].items():
            assert (float(row[name]) if row[name] else None) == value


@pytest.mark.parametrize(("overlong", "word", "tokens"), [("drop", "dropped", 700), ("truncate", "cut", 300)])
def test_the_ledger_is_shown(bench, tmp_path, overlong, word, tokens):
    (tmp_path / "lengths.csv").write_text("\n".join(["10"] * 50 + ["700"]))
    result = bench("plan", "-s", "random", "--lengths", "lengths.csv", *BUDGET, "--overlong", overlong)
    assert result.code == 0
    assert f"ledger   random: {word} 1 samples, {tokens} tokens" in result.out
    assert bench("plan", "-s", "random", "--lengths", "lengths.csv", *BUDGET).code == 2


def test_the_tables_fit_80_columns():
    manager = PluginManager()
    arms = manager.arms("all,bucketed:buckets=12:windows=stratified")
    samples = samples_from_lengths("lognormal:n=20000")
    request = PlanRequest(49_152, 0, 0, 2, 2, "spread")
    report = run_plans(arms, samples, request, "error", lambda _: None, lambda _: None)
    for width in (80, 120):
        text = io.StringIO()
        show(report, Console(file=text, width=width))
        lines = text.getvalue().splitlines()
        assert max(map(len, lines)) <= width
        assert "…" not in text.getvalue()
        for record in manager.strategies():
            if record.distribution == "dflash":
                assert sum(line.startswith(f"{record.name} ") for line in lines) >= 2, record.name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("raises", "strategy 'raises' failed: RuntimeError: cannot plan on Sundays"),
        ("repeats", "samples are planned more than once"),
        ("overfills", r"micro-batch \d+ holds \d+ padded tokens, over the budget"),
        ("lists", "expected a BatchPlan, got list"),
    ],
)
def test_a_strategy_that_fails_is_a_row_and_the_others_are_planned(
    bench, lengths_file, third_party, tmp_path, name, reason
):
    arguments = ("plan", "-s", f"{name},random", "--lengths", lengths_file, *BUDGET, "--json", "plans.json")
    result = bench(*arguments, env=third_party(name))
    assert (result.code, result.err) == (2, "")
    assert len(re.findall(f"failed   {name}: .*{reason}", result.out)) == 1
    report = json.loads((tmp_path / "plans.json").read_text())
    failed, random = report["arms"]
    assert re.search(reason, failed["error"]) and failed["plan"] == {}
    assert set(failed["metrics"].values()) == {None}
    assert random["error"] is None and random["metrics"]["padding_efficiency"] > 0.5
    assert report["exit_code"] == 2


def test_all_is_every_strategy_that_is_ok(bench, lengths_file, third_party):
    third_party("descending", distribution="one")
    third_party("descending", distribution="two")
    env = third_party("lists", start="raise ImportError('needs a library')")
    result = bench("plan", "--lengths", lengths_file, *BUDGET, "--json", "-", env=env)
    assert result.code == 0
    assert "dflash-strategy-lists/lists 1.2 is BROKEN: ImportError: needs a library" in result.err
    assert len(result.err.splitlines()) == 1
    names = [arm["strategy"] for arm in json.loads(result.out)["arms"]]
    assert {"one/descending", "two/descending", "random"} <= set(names) and "lists" not in names
    strict = bench("plan", "--lengths", lengths_file, *BUDGET, "--strict-plugins", env=env)
    assert strict.code == 2 and len(strict.err.splitlines()) == 1
    both = bench("plan", "-s", "random,descending", "--lengths", lengths_file, env=env)
    assert both.code == 2
    assert "one 1.2 and two 1.2 both claim the name 'descending': choose one/descending" in both.err
    chosen = bench("plan", "-s", "two/descending", "--lengths", lengths_file, *BUDGET, env=env)
    assert chosen.code == 0 and "descending" in chosen.out
    broken = bench("plan", "-s", "random,lists", "--lengths", lengths_file, env=env)
    assert broken.code == 2 and "BROKEN" in broken.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--lengths", "nowhere.npy"], "nowhere.npy: there is no such file"),
        (["--lengths", "lognormal:n=0"], "there are no samples to plan"),
        (["--lengths", "lognormal:n=many"], "n=many: expected int"),
        (["--lengths", "lognormal:median=-1"], "median=-1"),
        (["--lengths", TEXT, "--token-budget", "100"], "exceed the token budget 100: .*raise it to 185"),
        (["--lengths", TEXT, "--token-budget", "3", "--overlong", "drop"], "below the shortest sample"),
        (["--lengths", TEXT, "--data", "x.arrow"], "contradict"),
        (["--lengths", TEXT, "--json", "-", "--csv", "-"], "both"),
        (["--lengths", TEXT, "-s", "bucketd"], "did you mean 'bucketed'"),
        (["--lengths", TEXT, "-s", "all:buckets=3"], "unknown strategy 'all'"),
        (["--lengths", TEXT, "-s", "bucketed:bukets=3"], "no option 'bukets'; it has buckets"),
        (["--lengths", TEXT, "--tail", "bite"], "--tail"),
        (["--lengths", TEXT, "--drafters", "0"], "--drafters"),
        (["--lengths", TEXT, "-p", "random"], "no:NAME"),
    ],
)
def test_misuse_is_one_line_and_exit_2(bench, arguments, words):
    result = bench("plan", *arguments)
    assert result.code == 2
    assert re.search(words, result.err)
    assert len(result.err.splitlines()) == 1 and not result.out


def test_what_all_strategies_fail_of_is_no_row():
    samples, arms = samples_from_lengths(TEXT), PluginManager().arms("random,sorted")
    with pytest.raises(PlanError, match="samples exceed the token budget 100"):
        run_plans(
            arms, samples, PlanRequest(100, 0, 0, 1, 1, "spread"), "error", lambda _: None, lambda _: None
        )


def test_a_slow_strategy_is_told_of(monkeypatch, capsys):
    (arm,) = PluginManager().arms("random")
    samples, request = samples_from_lengths(TEXT), PlanRequest(400, 0, 0, 1, 1, "spread")
    for long, words in [(1e9, ""), (0.0, "plan 1/1  random  0")]:
        monkeypatch.setattr(plan_progress, "_LONG_SECONDS", long)
        with plan_progress.PlanProgress(1) as progress:
            run_plans([arm], samples, request, "error", progress.started, progress.ended)
        assert capsys.readouterr().err.startswith(words)


def test_no_model_is_needed():
    script = (
        "import sys\nfrom dflash.bench.cli import cli\n"
        f"cli.main(['plan', '--lengths', {TEXT!r}, '--json', '-'], standalone_mode=False)\n"
        "print([m for m in ('torch', 'transformers', 'pandas') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]", "what stands before it is progress"


def test_a_store_is_planned_as_it_is_trained(bench, small_store, small_file, small_config):
    """The same digest as the trainer's plan has: held-out samples are left out, ids are the store's rows."""
    from dflash.data.store import TokenStore
    from dflash.training.schedule import plan_epoch

    result = bench("plan", "-s", "random", "--data", str(small_store), "--token-budget", "400", "--json", "-")
    assert result.code == 0, result.err
    store = TokenStore.open(small_store)
    report = json.loads(result.out)
    assert report["data"]["samples"] == 200 and report["data"]["fingerprint"] == store.fingerprint
    (arm,) = PluginManager().arms("random")
    trained = plan_epoch(arm.strategy, arm.name, store, small_config, epoch=0)
    assert report["arms"][0]["plan"]["digest"] == trained.plan.digest()


def test_lognormal_is_what_parse_lengths_draws():
    assert np.array_equal(samples_from_lengths(TEXT).lengths, parse_lengths(TEXT))
