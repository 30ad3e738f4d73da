"""dflash as a person meets it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tomllib

import pytest
from commands import command, environment, run_command
from safetensors.torch import load_file

import dflash
from dflash.config import dump_config, load_config


@pytest.fixture
def small_file(small_config, tmp_path):
    file = tmp_path / "small.toml"
    file.write_text(dump_config(small_config))
    return str(file)


def test_train_writes_metrics_settings_and_weights(small_file, tmp_path):
    result = run_command(
        "dflash",
        *("train", "--config", small_file, "--windows", "7", "--out", "run"),
        *("--set", "training.evaluate_every=3"),
        cwd=tmp_path,
    )
    assert result.code == 0, result.err
    assert not result.out, "progress goes to stderr"
    assert "held-out loss" in result.err and "fingerprint" in result.err
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    windows = [line for line in lines if line["type"] == "window"]
    assert [line["window"] for line in windows] == list(range(7))
    assert [line["window"] for line in lines if line["type"] == "evaluation"] == [0, 3, 6, 7]
    assert all(line["loss"] > 0 and line["counts"]["real_tokens"] > 0 for line in windows)
    assert [line["learning_rate"] for line in windows][-1] < max(line["learning_rate"] for line in windows)
    config = load_config(tmp_path / "run" / "config.toml")
    assert (config.training.windows, config.training.evaluate_every) == (7, 3)
    weights = load_file(tmp_path / "run" / "drafter" / "model.safetensors")
    assert {
        "fc.weight",
        "hidden_norm.weight",
        "norm.weight",
        "layers.1.self_attn.k_norm.weight",
    } <= weights.keys()

    again = run_command("dflash", "train", "--config", small_file, "--out", "run", cwd=tmp_path)
    assert (again.code, len(again.err.splitlines())) == (2, 1)
    assert "already holds a run" in again.err


def test_epochs_are_planned_anew_and_the_same_run_repeats(small_file, tmp_path):
    def losses(name, *more):
        arguments = ("train", "--config", small_file, "--out", name, "--set", "training.epochs=2", *more)
        result = run_command("dflash", *arguments, cwd=tmp_path)
        assert result.code == 0, result.err
        lines = map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        return [(line["epoch"], line["loss"]) for line in lines if line["type"] == "window"]

    one, other = losses("one"), losses("other", "--set", "pipeline.engine=inline")
    assert one == other
    assert {epoch for epoch, _ in one} == {0, 1}


def test_interrupt_keeps_the_weights_and_leaves_at_once(small_file, tmp_path):
    process = subprocess.Popen(
        command("dflash", "train", "--config", small_file, "--out", "kept", "--set", "training.epochs=400"),
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = tmp_path / "kept" / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text().count('"window", "window"') > 3):
        assert process.poll() is None, process.stderr.read()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "go on with: dflash train --resume kept" in " ".join(err.split()) and "Traceback" not in err
    assert load_file(tmp_path / "kept" / "drafter" / "model.safetensors")
    assert all(json.loads(line) for line in metrics.read_text().splitlines()), "no torn line"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "--set", "training.sed=1"], "training has no 'sed'"),
        (["train", "--config", "absent.toml"], "absent.toml"),
        (["train", "--set", "batching.strategy=nope"], "unknown strategy 'nope'"),
        (["train", "--set", "batching.strategy=random,sorted"], "names 2 strategies"),
        (["train", "--set", "data.store=absent.arrow"], "absent.arrow"),
        (["train", "--windows", "0"], "--windows"),
        (["trian"], "trian"),
    ],
)
def test_misuse_is_one_line_and_exit_2(arguments, words, tmp_path):
    result = run_command("dflash", *arguments, cwd=tmp_path)
    assert result.code == 2
    assert words in result.err and len(result.err.splitlines()) == 1
    assert not (tmp_path / "runs").exists(), "a run that never began leaves no folder"


def test_print_config_is_toml_that_can_be_read_back(tmp_path):
    result = run_command("dflash", "train", "--print-config", "--windows", "3", cwd=tmp_path)
    assert tomllib.loads(result.out)["training"]["windows"] == 3


def test_python_m_is_the_same_command():
    done = subprocess.run(
        [sys.executable, "-m", "dflash", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"dflash, version {dflash.__version__}"
