"""dflash-bench predict and tune as a person or a script meets them."""

from __future__ import annotations

import io
import json
import tomllib
import warnings

import numpy as np
import pytest
from commands import Result
from rich.console import Console

from dflash.batching.plan import PlanRequest
from dflash.bench import results
from dflash.bench.cli import cli
from dflash.bench.plan_run import samples_from_lengths
from dflash.bench.predict_report import show
from dflash.bench.predict_run import Scene, run_predictions
from dflash.command_line import run_command
from dflash.config import load_config
from dflash.plugin_manager import PluginManager
from dflash.simulation.pipeline import Topology
from dflash.simulation.profile import load_profile
from dflash.simulation.sizes import load_sizes


@pytest.fixture
def bench(tmp_path, monkeypatch, capfdbinary):
    """Runs dflash-bench in this process, in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str) -> Result:
        with warnings.catch_warnings():
            code = run_command(cli, "dflash-bench", arguments)
        out, err = capfdbinary.readouterr()
        return Result(code, out.decode(), err.decode())

    return run


LENGTHS = "lognormal:median=900:sigma=0.5:min=65:max=4000:n=4000"
RUN = ("--lengths", LENGTHS, "--hardware", "h200", "--model", "qwen3-8b", "--token-budget", "16384")


def test_json_has_the_shape_of_a_run(bench):
    result = bench(
        "predict", "-s", "random,packed", *RUN, "--topology", "2:3", "--price", "2.5", "--json", "-"
    )
    assert result.code == 0, result.err
    report = json.loads(result.out)
    assert (report["schema_version"], report["exit_code"]) == (results.SCHEMA_VERSION, 0)
    assert (report["settings"]["targets"], report["settings"]["drafters"]) == (2, 3)
    assert report["data"]["samples"] == 4000
    assert report["memory"]["fits"] is True
    random, packed = report["arms"]
    assert (random["strategy"], packed["strategy"]) == ("random", "packed")
    for arm in (random, packed):
        metrics = arm["metrics"]
        low, high = arm["intervals"]["tok_s"]
        assert low < metrics["tok_s"] < high
        assert high / metrics["tok_s"] == pytest.approx(1.3, abs=0.02)
        assert metrics["tok_s"] / metrics["padded_tok_s"] == pytest.approx(metrics["padding_efficiency"])
        tokens = report["data"]["tokens"]
        assert metrics["epoch_seconds"] * metrics["tok_s"] == pytest.approx(tokens)
        assert metrics["device_seconds"] == pytest.approx(5 * metrics["epoch_seconds"])
        assert metrics["epoch_cost"] == pytest.approx(2.5 * metrics["device_seconds"] / 3600)
        assert len(arm["plan"]["digest"]) == 64
        assert len(arm["forecast"]["targets"]) == 2
        assert len(arm["forecast"]["drafters"]) == 3
    assert packed["metrics"]["padding_efficiency"] == 1.0


def test_the_table_fits_80_columns_and_says_what_does_not_fit():
    scene = Scene(
        profile=load_profile("h100"),
        sizes=load_sizes("qwen3-8b"),
        topology=Topology(1, 2, 2, 3),
        attention="eager",
        price=3.0,
    )
    request = PlanRequest(98_304, 0, 0, 2, 2, "spread")
    arms = PluginManager().arms("random,bucketed:buckets=6:windows=synced,step_window")
    nothing = lambda _: None  # noqa: E731
    prediction = run_predictions(
        arms, samples_from_lengths(LENGTHS), request, scene, "error", nothing, nothing
    )
    file = io.StringIO()
    show(prediction, scene, Console(width=80, file=file))
    text = file.getvalue()
    assert max(len(line) for line in text.splitlines()) <= 80
    assert prediction.memory is not None
    assert not prediction.memory.fits
    assert "does not fit: at most" in text
    assert all(arm.metrics["epoch_cost"] for arm in prediction.arms)


def test_help_teaches(bench):
    for command in ("predict", "calibrate", "tune"):
        result = bench(command, "--help")
        assert result.code == 0
        assert f"dflash-bench {command}" in result.out
    assert "predict" in bench("--help").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--topology", "6"), "write TARGETS:DRAFTERS, e.g. 6:2"),
        (("--topology", "0:2"), "write TARGETS:DRAFTERS, e.g. 6:2"),
        (("--hardware", "gtx"), "no hardware profile 'gtx'"),
        (("--model", "gpt-7"), "no model 'gpt-7'"),
        (("--data", "sample"), "--lengths and --data contradict each other"),
        (("--strategy", "randm"), "did you mean 'random'?"),
        (("--token-budget", "100"), "the token budget 100 is below the shortest sample"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_2(bench, arguments, message):
    result = bench("predict", *RUN, *arguments)
    assert result.code == 2
    assert message in result.err
    assert "Traceback" not in result.err


def test_check_needs_a_run(bench):
    result = bench("predict", "--check", "last", "--hardware", "h200")
    assert result.code == 2
    assert "no run is stored" in result.err


def test_tune_finds_the_best_of_a_space_that_is_tried_whole(bench):
    space = ("--token-budgets", "8192,16384", "--accumulations", "2,4", "--depths", "2,3", "--devices", "4")
    result = bench("tune", "-s", "random,packed", *RUN[:6], *space, "--samples", "2000", "--json", "-")
    assert result.code == 0
    report = json.loads(result.out)
    best = report["best"]
    rates = [one["tok_s"] for one in report["simulated"] if one["variance_ratio"] <= 2]
    assert best["tok_s"] == max(rates)
    assert sum(best["choice"]["topology"]) == 4
    fronts = report["front"]
    assert [one["tok_s"] for one in fronts] == sorted((one["tok_s"] for one in fronts), reverse=True)


def test_tune_prints_settings_that_the_trainer_takes(bench, tmp_path):
    result = bench("tune", "-s", "packed", *RUN[:6], "--devices", "2", "--samples", "2000", "--depths", "3")
    assert result.code == 0
    text = result.out[result.out.index("[batching]") :]
    assert tomllib.loads(text)["batching"]["strategy"] == "packed"
    (tmp_path / "best.toml").write_text(text)
    assert load_config(tmp_path / "best.toml").pipeline.depth == 3


def test_tune_says_when_nothing_fits(bench):
    result = bench("tune", "-s", "packed", *RUN[:6], "--token-budgets", "4000000", "--devices", "2")
    assert result.code == 2
    assert "no choice fits the devices' memory" in result.err


def test_lengths_of_a_file(bench, tmp_path):
    np.save(tmp_path / "lengths.npy", np.full(400, 50))
    result = bench(
        "predict", "-s", "random", "--lengths", "lengths.npy", "--hardware", "b200", "--model", "sample"
    )
    assert result.code == 0, result.err
    assert "random" in result.out
