"""`dflash export` and `dflash train --init` as a person meets them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from conftest import MASK_ID
from safetensors.torch import load_file

from dflash.cli import cli
from dflash.command_line import run_command
from dflash.config import dump_config, load_config
from dflash.models.export import read_drafter, validate_export


@pytest.fixture(scope="module")
def run(small_target, small_store, tmp_path_factory):
    """The folder of a short run. Beside it its settings, and free.toml: the same without the block size."""
    where = tmp_path_factory.mktemp("work")
    settings = {
        "data.store": small_store,
        "data.target": small_target,
        "data.held_out_samples": 20,
        "data.allow_untrained_target": "true",
        "batching.token_budget": 400,
        "batching.strategy": "random",
        "drafter.block_size": 8,
        "drafter.max_anchors": 4,
        "drafter.anchor_stride": 4,
        "training.windows": 3,
    }
    text = dump_config(load_config(None, tuple(f"{name}={value}" for name, value in settings.items())))
    (where / "small.toml").write_text(text)
    assert "block_size = 8\n" in text
    (where / "free.toml").write_text(text.replace("block_size = 8\n", ""))
    arguments = ["train", "--config", str(where / "small.toml"), "--out", str(where / "run")]
    assert run_command(cli, "dflash", arguments) == 0
    return where / "run"


@pytest.fixture
def dflash(run, capsys, monkeypatch):
    """Exit code, stdout and stderr of a command that is started beside the run."""
    monkeypatch.chdir(run.parent)

    def command(*arguments):
        capsys.readouterr()
        code = run_command(cli, "dflash", [str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return command


def parameters():
    """Of two layers beside the small target, counted by hand."""
    hidden, wide, queries, keys, head = 24, 40, 32, 16, 8
    layer = 2 * hidden + 2 * queries * hidden + 2 * keys * hidden + 2 * head + 3 * wide * hidden
    return 5 * hidden * hidden + 2 * hidden + 2 * layer


@pytest.mark.parametrize("checkpoint", ["run", "run/drafter"])
def test_export_of_a_run(dflash, run, checkpoint, tmp_path):
    code, out, err = dflash("export", checkpoint, "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert f"25 tensors, {parameters():,} parameters" in out and len(out.splitlines()) == 1
    validate_export(tmp_path / "out")
    trained, exported = (read_drafter(folder).state_dict() for folder in (run, tmp_path / "out"))
    assert all(torch.equal(exported[name], weight.bfloat16().float()) for name, weight in trained.items())
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["max_position_embeddings"] == 512, "the target's"


def test_every_key_is_listed_when_asked_for(dflash, tmp_path):
    code, out, _ = dflash("export", "run", "--out", tmp_path / "out", "--dtype", "float32", "-v")
    lines = out.splitlines()
    assert (code, len(lines)) == (0, 26)
    assert lines[0].split(maxsplit=2) == ["fc.weight", "F32", "[24, 120]"]
    size = os.stat(tmp_path / "out" / "model.safetensors").st_size
    assert f"{size:,} bytes of float32" in lines[-1] and size > 4 * parameters()


def test_a_second_export_and_another_target_are_refused(dflash, small_target, tmp_path):
    assert dflash("export", "run", "--out", tmp_path / "out")[0] == 0
    code, _, err = dflash("export", "run", "--out", tmp_path / "out")
    assert (code, len(err.splitlines())) == (2, 1) and f"{tmp_path / 'out'} exists already" in err

    code, _, err = dflash("export", "run", "--out", tmp_path / "new", "--target", "sample")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "hidden_size 24, not 96" in err and "vocab_size 97, not 2048" in err
    assert not (tmp_path / "new").exists()
    assert dflash("export", "run", "--out", tmp_path / "new", "--target", small_target)[0] == 0


def test_a_killed_export_leaves_nothing_that_lasts(dflash, tmp_path):
    """The hidden folder of a process that was killed goes when the next one exports there, and no sooner."""
    out = tmp_path / "out"
    script = (
        "import pathlib, sys; from dflash.data.atomic_folder import new_folder\n"
        f"with new_folder(pathlib.Path({str(out)!r})) as draft:\n"
        "    (draft / 'model.safetensors').write_bytes(b'half'); print('open', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"open\n"
    (draft,) = tmp_path.iterdir()
    assert dflash("export", "run", "--out", out)[0] == 0
    assert draft.exists(), "its writer lives"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert draft.exists() and out.exists()
    (out / "config.json").unlink()
    (out / "model.safetensors").unlink()
    assert dflash("export", "run", "--out", out)[0] == 0
    assert list(tmp_path.iterdir()) == [out]


def evaluations(folder):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["type"] == "evaluation"]


def test_a_run_starts_where_an_export_ends(dflash, run, tmp_path):
    """Its first evaluation is the last one of the run before; what it records can be run again."""
    exported, one, again = tmp_path / "exported", tmp_path / "one", tmp_path / "again"
    assert dflash("export", "run", "--out", exported, "--dtype", "float32")[0] == 0
    code, _, err = dflash("train", "--config", "free.toml", "--init", exported, "--windows", 1, "--out", one)
    assert code == 0, err
    assert evaluations(one)[0] == pytest.approx(evaluations(run)[-1], rel=1e-6)
    config = load_config(one / "config.toml")
    assert config.training.init == str(exported)
    assert (config.drafter.block_size, config.drafter.mask_token_id) == (8, MASK_ID), "the folder's"
    trained, before = (load_file(folder / "drafter" / "model.safetensors") for folder in (one, run))
    assert not torch.equal(trained["fc.weight"], before["fc.weight"])
    code, _, err = dflash("train", "--config", one / "config.toml", "--out", again)
    assert code == 0, err
    assert evaluations(again) == evaluations(one)


@pytest.mark.parametrize("init", [["--init", "run"], ["--set", "training.init=run/drafter"]])
def test_sizes_come_from_the_folder_however_it_is_given(dflash, init):
    code, out, _ = dflash("train", "--config", "free.toml", *init, "--print-config")
    assert code == 0
    assert "block_size = 8" in out and f"mask_token_id = {MASK_ID}" in out and 'init = "run' in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--init", "run", "--set", "drafter.layers=3"], "drafter.layers is 3, but the drafter in run has 2"),
        (["--init", "run", "--set", "data.target=sample"], "for a target with hidden_size 24, not 96"),
        (["--init", "absent"], "absent/config.json"),
    ],
)
def test_what_contradicts_the_drafter_is_refused(dflash, arguments, words):
    code, _, err = dflash("train", "--config", "free.toml", *arguments, "--out", "never")
    assert (code, len(err.splitlines())) == (2, 1)
    assert words in err
    assert not os.path.exists("never")
