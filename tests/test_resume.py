"""`dflash train --resume` as a person meets it: whatever ended a run, it goes on as if nothing had."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import shutil
import signal
from contextlib import contextmanager, suppress
from functools import partial

import msgspec
import pytest
from runs import (
    killed_at_checkpoint,
    killed_at_window,
    metrics,
    outcome,
    run_settings,
    stopped_after,
    terminated_at_window,
    train,
    train_apart,
)

from dflash.config import load_config
from dflash.training.checkpoint import (
    Checkpoint,
    checkpoints,
    path_of,
    read_checkpoint,
    read_header,
    write_checkpoint,
)
from dflash.training.optimizer import schedule_factor

WINDOWS = 16
"""in epochs of 7 windows"""


@pytest.fixture(scope="module")
def settings_file(small_target, tmp_path_factory):
    folder = tmp_path_factory.mktemp("settings")
    return run_settings(
        folder,
        small_target,
        samples=66,
        windows=WINDOWS,
        more=("training.evaluate_every=3", "training.checkpoint_every=2", "training.keep_checkpoints=100"),
    )


@pytest.fixture(scope="module")
def unbroken(settings_file, tmp_path_factory):
    """The folder of a run that nothing happened to. Nobody writes to it."""
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    assert train("--config", settings_file, "--out", folder) == 0
    return folder


def as_killed_after(unbroken, folder, windows):
    """The folder as kill -9 leaves it after so many windows: more lines, half a line, temporaries."""
    shutil.copytree(unbroken, folder, ignore=shutil.ignore_patterns("drafter"))
    for after, path in checkpoints(folder).items():
        if after > windows:
            path.unlink()
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    written = read_header(path_of(folder, windows)).results + 2
    (folder / "metrics.jsonl").write_bytes(b"".join(lines[:written]) + b'{"type": "win')
    (folder / "checkpoints" / ".window-00000099.safetensors.0123456789abcdef.tmp").write_bytes(b"half")
    return folder


def starts(folder):
    return json.loads((folder / "manifest.json").read_text())["starts"]


def epoch_lengths(folder):
    return json.loads((folder / "manifest.json").read_text())["windows"]


def rewrite(path, header):
    write_checkpoint(path, Checkpoint(header=header, tensors=read_checkpoint(path).tensors))


@contextmanager
def started(folder, *arguments, struck=None):
    """`dflash train` as the first process of a group of its own; killed with all of it at the end."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dflash.training.trainer", "transformers.models.qwen3.modeling_qwen3"])
    process = context.Process(target=train_apart, args=(tuple(map(str, arguments)), folder / "log", struck))
    process.start()
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.join()


def test_an_unbroken_run_trains_what_its_plans_say(unbroken):
    told = json.loads((unbroken / "manifest.json").read_text())
    per_epoch = told["windows"]
    assert sum(per_epoch) == WINDOWS and len(per_epoch) >= 3, "the run must cross epochs"
    windows = [line for line in metrics(unbroken) if line["type"] == "window"]
    assert [line["epoch"] for line in windows] == [
        epoch for epoch, count in enumerate(per_epoch) for _ in range(count)
    ]
    assert sum(line["counts"]["samples"] for line in windows[: per_epoch[0]]) == 60, "the whole store, once"
    evaluations = [line["window"] for line in metrics(unbroken) if line["type"] == "evaluation"]
    assert evaluations == [*range(0, WINDOWS, 3), WINDOWS]
    assert list(checkpoints(unbroken)) == [*range(2, WINDOWS + 1, 2)]
    assert len(told["plan_digests"]) == len(per_epoch)
    assert told["starts"][0]["after_windows"] == 0 and told["starts"][0]["versions"]["torch"]


@pytest.mark.parametrize("strategy", ["bucketed:buckets=3", "sorted"])
def test_the_schedule_is_that_of_the_true_number_of_windows(settings_file, tmp_path, capfd, strategy):
    """Which differs by strategy and epoch."""
    folder = tmp_path / "run"
    whole = ("--set", "training.windows=null", "--set", "training.epochs=2")
    assert (
        train("--config", settings_file, "--out", folder, *whole, "--set", f"batching.strategy={strategy}")
        == 0
    )
    total = sum(epoch_lengths(folder))
    assert f"{total} windows of {strategy}" in " ".join(capfd.readouterr().err.split())
    windows = [line for line in metrics(folder) if line["type"] == "window"]
    assert sum(line["counts"]["samples"] for line in windows) == 2 * 60
    settings = load_config(folder / "config.toml").optimizer
    assert [line["learning_rate"] for line in windows] == [
        settings.learning_rate
        * schedule_factor(window, total, settings.warmup, settings.final_learning_rate_share)
        for window in range(total)
    ]


# 12, in the second epoch, has an evaluation at the same place; 14 is the end of that epoch.
@pytest.mark.parametrize("windows", [2, 12, 14])
def test_a_killed_run_ends_as_if_nothing_had_happened(unbroken, tmp_path, windows):
    assert windows < 14 or windows == sum(epoch_lengths(unbroken)[:2])
    folder = as_killed_after(unbroken, tmp_path / "run", windows)
    assert train("--resume", folder) == 0
    assert outcome(folder) == outcome(unbroken)
    assert not list(folder.rglob("*.tmp")), "what the killed run left is removed"
    assert [start["after_windows"] for start in starts(folder)] == [0, windows]


def test_three_times_within_one_epoch(unbroken, tmp_path, settings_file, monkeypatch):
    """From absolute places: a second resume that counts from the first one trains other samples."""
    folder = tmp_path / "run"
    assert epoch_lengths(unbroken)[0] > 6
    with stopped_after(2, monkeypatch):
        assert train("--config", settings_file, "--out", folder) == 130
    for stop, committed in ((1, 3), (2, 5), (1, 6)):
        with stopped_after(stop, monkeypatch):
            assert train("--resume", folder) == 130
        assert max(checkpoints(folder)) == committed
        assert len([line for line in metrics(folder) if line["type"] == "window"]) == committed
    assert train("--resume", folder) == 0
    assert outcome(folder) == outcome(unbroken)


def test_stopped_before_the_first_window(unbroken, tmp_path, settings_file, monkeypatch):
    """The first evaluation is not done twice, and a second stop at the same place changes nothing."""
    folder = tmp_path / "run"
    with stopped_after(0, monkeypatch):
        assert train("--config", settings_file, "--out", folder) == 130
        assert train("--resume", folder) == 130
    assert list(checkpoints(folder)) == [0]
    assert [line["type"] for line in metrics(folder)] == ["evaluation"]
    assert train("--resume", folder) == 0
    assert outcome(folder) == outcome(unbroken)


def test_stopped_when_all_is_trained_is_finished(unbroken, tmp_path, monkeypatch):
    folder = as_killed_after(unbroken, tmp_path / "run", 14)
    with stopped_after(2, monkeypatch):
        assert train("--resume", folder) == 0
    assert outcome(folder) == outcome(unbroken)


def test_a_complete_run_is_complete(unbroken, tmp_path, capfd):
    """It gets its drafter, which a kill at the very end may have cost it."""
    folder = as_killed_after(unbroken, tmp_path / "run", WINDOWS)
    assert train("--resume", "auto", "--out", folder) == 0
    assert outcome(folder) == outcome(unbroken)


def test_a_checkpoint_ahead_of_the_metrics_is_trained_again(unbroken, tmp_path, monkeypatch):
    """A worker may have written it before the command wrote the results that came with it."""
    folder = as_killed_after(unbroken, tmp_path / "run", 8)
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_bytes(b"".join(lines[: read_header(path_of(folder, 8)).results - 1]))
    with stopped_after(1, monkeypatch):
        assert train("--resume", folder) == 130
    assert list(checkpoints(folder)) == [2, 4, 6, 7], "and is gone until then"
    assert train("--resume", folder) == 0
    assert [start["after_windows"] for start in starts(folder)] == [0, 6, 7]
    assert outcome(folder) == outcome(unbroken)


@pytest.mark.parametrize("has", ["nothing", "metrics", "settings and metrics"])
def test_auto_begins_where_there_is_no_checkpoint(settings_file, tmp_path, has, monkeypatch):
    folder = tmp_path / "run"
    if has != "nothing":
        folder.mkdir()
        (folder / "metrics.jsonl").write_text('{"type": "evaluation", "window": 0, "loss": 1.0}\n{"type')
    if has == "settings and metrics":
        (folder / "config.toml").write_bytes(settings_file.read_bytes())
    with stopped_after(2, monkeypatch):
        assert train("--config", settings_file, "--resume", "auto", "--out", folder) == 130
    assert [line["window"] for line in metrics(folder)] == [0, 0, 1]
    assert list(checkpoints(folder)) == [2]


def test_only_as_many_checkpoints_as_asked_for_and_the_best(unbroken, tmp_path):
    """The best has the least held-out loss of the whole run, also of before it was resumed."""
    folder = as_killed_after(unbroken, tmp_path / "run", 6)
    losses = {n: read_header(path).held_out_loss for n, path in checkpoints(unbroken).items()}
    # A loss that nothing reaches, in a checkpoint that would be gone otherwise.
    best = read_header(path_of(folder, 4))
    rewrite(path_of(folder, 4), msgspec.structs.replace(best, held_out_loss=min(losses.values()) - 1))
    assert train("--resume", folder, "--set", "training.keep_checkpoints=2") == 0
    assert list(checkpoints(folder)) == [4, WINDOWS - 2, WINDOWS]


def test_how_often_is_looked_may_change(unbroken, tmp_path):
    """It decides nothing. What was evaluated at the place of the checkpoint is not evaluated again."""
    folder = as_killed_after(unbroken, tmp_path / "run", 6)
    more = ("--set", "training.evaluate_every=2", "--set", "training.checkpoint_every=7")
    assert train("--resume", folder, *more) == 0
    evaluations = [line["window"] for line in metrics(folder) if line["type"] == "evaluation"]
    assert evaluations == [0, 3, 6, *range(8, WINDOWS + 1, 2)]
    assert list(checkpoints(folder)) == [2, 4, 6, 7, 14, WINDOWS]
    found, expected = outcome(folder), outcome(unbroken)
    assert (found.tensors, found.drafter) == (expected.tensors, expected.drafter)


def test_settings_may_come_from_elsewhere(unbroken, settings_file, tmp_path, monkeypatch):
    """A run that was begun with relative paths goes on from another working directory."""
    config = load_config(settings_file)
    here = tmp_path / "here"
    here.mkdir()
    (here / "store.arrow").symlink_to(config.data.store)
    (here / "target").symlink_to(config.data.target)
    monkeypatch.chdir(here)
    paths = ("--set", "data.store=store.arrow", "--set", "data.target=target")
    with stopped_after(2, monkeypatch):
        assert train("--config", settings_file, *paths, "--out", "run") == 130
    monkeypatch.chdir("/")
    with stopped_after(1, monkeypatch):
        assert train("--resume", here / "run") == 130
    assert list(checkpoints(here / "run")) == [2, 3]


def test_another_number_of_drafters_says_what_still_holds(unbroken, tmp_path, capfd):
    folder = as_killed_after(unbroken, tmp_path / "run", 14)
    more = ("--topology", "2:2", "--set", "batching.accumulation=1")
    assert train("--resume", folder, *more) == 0
    line = next(line for line in capfd.readouterr().err.splitlines() if "going on" in line)
    assert "pipeline.drafters=2, not 1" in line and "rounded otherwise" in line
    found, expected = outcome(folder), outcome(unbroken)
    assert found.windows == expected.windows
    for its, mine in zip(expected.metrics, found.metrics, strict=True):
        assert mine.get("counts") == its.get("counts")
        assert mine["loss"] == pytest.approx(its["loss"], abs=1e-5)


REFUSED = {
    "training.seed=1": "training.seed=0, not 1",
    "training.windows=30": "training.windows=16, not 30",
    "optimizer.learning_rate=0.1": "optimizer.learning_rate=0.003, not 0.1",
    "batching.accumulation=4": "batching.accumulation x drafters=2, not 4",
    "batching.strategy=sorted": "batching.strategy='random', not 'sorted'",
    "data.held_out_samples=3": "data.held_out_samples=128, not 3",
}


@pytest.mark.parametrize("change", REFUSED)
def test_other_settings_are_refused_by_name(unbroken, tmp_path, capfd, change):
    folder = as_killed_after(unbroken, tmp_path / "run", 6)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert train("--resume", folder, "--set", change) == 2
    err = capfd.readouterr().err
    assert REFUSED[change] in err and err.count("\n") == 1
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_another_data_set_and_another_target_are_refused(
    unbroken, settings_file, tmp_path, capfd, small_target
):
    from safetensors.torch import load_file, save_file

    from dflash.data.store import StoreSample, TokenStore, write_store

    folder = as_killed_after(unbroken, tmp_path / "run", 6)
    store, other = TokenStore.open(settings_file.parent / "store.arrow"), tmp_path / "other.arrow"
    samples = (
        StoreSample(store.tokens(row)[::-1].copy(), store.loss_mask(row), f"{row}", row >= 60)
        for row in range(len(store))
    )
    write_store(other, samples, {})
    assert train("--resume", folder, "--set", f"data.store={other}") == 2
    assert "of another data set" in capfd.readouterr().err

    target = tmp_path / "target"
    shutil.copytree(small_target, target)
    weights = load_file(target / "model.safetensors")
    weights["lm_head.weight"][0, 0] += 1
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    assert train("--resume", folder, "--set", f"data.target={target}") == 2
    err = capfd.readouterr().err
    assert "of another target: the hash of its weights" in err
    hashes = err.rpartition("weights is ")[2].split(", not ")
    assert hashes[0] != hashes[1].strip(), "what differs can be seen"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--resume", "nowhere"), "there is no run"),
        (("--resume", "auto"), "give that too"),
        (("--resume", "run", "--out", "other"), "leave out --out"),
        (("--resume", "run/checkpoints/window-00000004.safetensors"), "there are later ones"),
        (("--resume", "run/config.toml"), "no checkpoint in the checkpoints of a run"),
        (("--out", "run"), "already holds a run"),
    ],
)
def test_misuse_is_one_line_and_exit_2(unbroken, tmp_path, monkeypatch, capfd, arguments, words):
    (tmp_path / "run").symlink_to(unbroken)
    monkeypatch.chdir(tmp_path)
    assert train(*arguments) == 2
    err = capfd.readouterr().err
    assert words in err and err.count("\n") == 1


def test_metrics_that_are_lost_stop_a_resume_that_would_begin_again(unbroken, tmp_path, capfd):
    folder = as_killed_after(unbroken, tmp_path / "run", WINDOWS)
    (folder / "metrics.jsonl").unlink()
    header = read_header(path_of(folder, WINDOWS))
    rewrite(path_of(folder, WINDOWS), msgspec.structs.replace(header, results=header.results + 100))
    assert train("--resume", folder) == 2
    assert "0 lines of" in capfd.readouterr().err
    assert len(checkpoints(folder)) == WINDOWS // 2


def test_two_processes_do_not_train_in_one_folder(unbroken, tmp_path, capfd):
    folder = as_killed_after(unbroken, tmp_path / "run", 14)
    with (folder / "metrics.jsonl").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert train("--resume", folder) == 2
    assert "another process is training" in capfd.readouterr().err


def test_sigterm_finishes_the_window_and_writes_a_checkpoint(unbroken, settings_file, tmp_path):
    folder = tmp_path / "run"
    # Some ten windows can be under way behind a result that nobody has looked at yet.
    struck = partial(terminated_at_window, 0)
    with started(tmp_path, "--config", settings_file, "--out", folder, struck=struck) as process:
        process.join(60)
        assert process.exitcode == 130
    err = (tmp_path / "log").read_text()
    assert "stopping: the windows under way are finished" in err and "Traceback" not in err
    assert f"go on with: dflash train --resume {folder}" in " ".join(err.split())
    assert 0 < max(checkpoints(folder)) < WINDOWS
    assert len([line for line in metrics(folder) if line["type"] == "window"]) == max(checkpoints(folder))
    assert train("--resume", folder) == 0
    assert outcome(folder) == outcome(unbroken)


@pytest.mark.parametrize(
    ("struck", "engine"),
    [(partial(killed_at_checkpoint, 3), "thread"), (partial(killed_at_window, 5), "process")],
    ids=["at a checkpoint, threads", "in a window, processes"],
)
def test_kill_9_loses_nothing(unbroken, settings_file, tmp_path, struck, engine):
    folder = tmp_path / "run"
    with_engine = ("--set", f"pipeline.engine={engine}")
    with started(
        tmp_path, "--config", settings_file, "--out", folder, *with_engine, struck=struck
    ) as process:
        process.join(30)
        assert process.exitcode == -signal.SIGKILL
    assert not (folder / "drafter").exists(), "killed before its end"
    assert train("--resume", "auto", "--out", folder, "--set", "pipeline.engine=thread") == 0
    assert outcome(folder) == outcome(unbroken)
