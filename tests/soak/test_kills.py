"""kill -9 of the whole tree at random moments: what is resumed ends as the run that nothing happened to."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from itertools import accumulate

import pytest
from commands import command, environment
from runs import outcome, run_settings, train

from dflash.training.checkpoint import checkpoints

pytestmark = pytest.mark.timeout(1200)

WINDOWS = 60
ROUNDS = [("thread", "1:1"), ("process", "2:2"), ("thread", "2:2"), ("process", "2:1")]


@pytest.fixture(scope="module")
def settings_file(small_target, tmp_path_factory):
    more = ("training.evaluate_every=4", "training.checkpoint_every=3", "batching.accumulation=2")
    folder = tmp_path_factory.mktemp("settings")
    return run_settings(folder, small_target, samples=132, windows=WINDOWS, more=more)


@pytest.fixture(scope="module")
def unbroken(settings_file, tmp_path_factory):
    """By number of drafters."""
    folders = {}
    for drafters in (1, 2):
        folders[drafters] = tmp_path_factory.mktemp("unbroken") / "run"
        assert train(*arguments(settings_file, folders[drafters], "thread", f"1:{drafters}")) == 0
    return folders


def arguments(settings_file, folder, engine, topology):
    accumulation = 2 // int(topology[-1])
    return (
        *("--config", str(settings_file), "--resume", "auto", "--out", str(folder)),
        *("--topology", topology, "--set", f"pipeline.engine={engine}"),
        *("--set", f"batching.accumulation={accumulation}"),
    )


def lines(folder, with_word=b""):
    """Whole lines of metrics.jsonl, which is being written to."""
    file = folder / "metrics.jsonl"
    whole = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    return sum(line.endswith(b"\n") and with_word in line for line in whole)


def moments(folder, chance):
    """When to kill, in turn: a name, and a function that is true once the moment has come."""
    until = time.monotonic() + chance.uniform(0, 8)
    yield "at the start", lambda: time.monotonic() > until
    begun = chance.randrange(2, 20)
    yield "in a window", lambda: lines(folder) > begun
    yield "at a checkpoint", lambda: any(folder.glob("checkpoints/.*.tmp"))
    before = lines(folder)
    yield "right after a resume", lambda: lines(folder) > before
    ends = [epoch for epoch in epoch_ends(folder) if epoch > committed(folder)]
    if ends:
        yield "at an epoch's end", lambda: committed(folder) >= ends[0]


def committed(folder):
    return lines(folder, b'"type": "window"')


def epoch_ends(folder):
    return list(accumulate(json.loads((folder / "manifest.json").read_text())["windows"]))


def kill_at(moment, arguments, log):
    """Whether it was killed, and had not ended before."""
    with log.open("ab") as err:
        process = subprocess.Popen(
            command("dflash", "train", *arguments), env=environment(), stderr=err, start_new_session=True
        )
        while process.poll() is None and not moment():
            time.sleep(0.0005)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return process.returncode == -signal.SIGKILL
        time.sleep(0.05)
    raise AssertionError("a process of the tree is left")


@pytest.mark.parametrize("seed", range(len(ROUNDS)))
def test_twenty_kills(unbroken, settings_file, tmp_path, seed):
    engine, topology = ROUNDS[seed]
    folder, chance, kills = tmp_path / "run", random.Random(seed), []
    call = arguments(settings_file, folder, engine, topology)
    for name, moment in moments(folder, chance):
        if kill_at(moment, call, tmp_path / "log"):
            kills.append((name, committed(folder), list(checkpoints(folder))))
    print(f"{engine} {topology}:", *kills, sep="\n  ")
    assert train(*call) == 0
    assert outcome(folder) == outcome(unbroken[int(topology[-1])])
    assert len(kills) >= 4, (tmp_path / "log").read_text()
    assert not list(folder.rglob("*.tmp"))
