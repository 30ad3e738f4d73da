"""Whatever goes wrong ends a run soon, with what came first in one line, and leaves only what is whole.

The faults are real: processes are killed, computations hang, bytes are missing.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from pathlib import Path

import msgspec
import process_stages
import pytest
from commands import command, environment
from sessions import members, nobody_is_left

from dflash.cli import cli
from dflash.command_line import run_command
from dflash.data.sources import open_store
from dflash.errors import ExitCode, StageError
from dflash.pipeline import open_engine
from dflash.plugin_manager import PluginManager
from dflash.testing.faults import Fault
from dflash.training import run
from dflash.training.checkpoint import FOLDER, Origin, read_checkpoint
from dflash.training.models import ModelsApart, load_models
from dflash.training.schedule import in_training_order, plan_epoch
from dflash.training.step import Saving, WindowResult

pytestmark = pytest.mark.timeout(200)

WORK = r"while working on micro-batch \d+ \(train, window (?P<window>\d+), \d+ samples\)"
KILLED = r"its process died \(killed by SIGKILL\)"
SILENT = rf"has made no progress for [\d.]+ s {WORK}"
TWO = {"drafters": 2}
MODELLING = "transformers.models.qwen3.modeling_qwen3"
SOON = {"watchdog_seconds": 3.0}

TABLE = {
    "raise:target:0@window=4": ({}, rf"stage target-0 failed {WORK}: RuntimeError: injected, raise:.*"),
    "raise:drafter:1@window=4": (TWO, rf"stage drafter-1 failed {WORK}: RuntimeError: injected, raise:.*"),
    "kill:target:1@window=4": ({"targets": 2}, rf"stage target-1 failed {WORK}: {KILLED}"),
    "kill:drafter:0@window=4": ({}, rf"stage drafter-0 failed {WORK}: {KILLED}"),
    "kill:reduction:1@window=4": (TWO, rf"stage drafter-1 failed {WORK}: {KILLED}"),
    "hang:target:0@window=4": (SOON, rf"stage target-0 {SILENT}"),
    "deaf:drafter:0@window=4": (SOON, rf"stage drafter-0 {SILENT}"),
    "hang:reduction:0@window=4": (TWO | SOON, rf"stage drafter-[01] {SILENT}"),
    "nan:target:0@window=4": (
        {},
        rf"stage drafter-0 failed {WORK}: the target's features of 1 samples are not .*",
    ),
    "short-read:store@window=4": (
        {},
        rf"stage prefetch-0 failed {WORK}: .*row \d+ ends after \d+ of \d+ tokens.*",
    ),
    "disk-full:checkpoint@window=4": (
        {},
        rf"stage drafter-0 failed {WORK}: cannot write the checkpoint .*No space.*",
    ),
}


@dataclass
class Outcome:
    folder: Path
    windows: list[WindowResult] = field(default_factory=list)
    error: StageError | None = None

    @property
    def checkpoints(self) -> list[Path]:
        return sorted((self.folder / FOLDER).glob("window-*"))


def train(config, folder: Path, fault: str | None = None, windows: int = 400) -> Outcome:
    """A run with a checkpoint after every window, without end unless something ends it."""
    store = open_store(config.data)
    arm = PluginManager().arms(config.batching.strategy)[0]
    drafters = config.pipeline.drafters
    epoch = plan_epoch(arm.strategy, arm.name, store, config, 0, drafters)
    per_epoch = len(epoch.plan.window_offsets) - 1
    staff = ModelsApart(config) if config.pipeline.engine == "process" else load_models(config, store)
    if fault is not None:
        staff, store = Fault.parse(fault).into(staff, store)
    work = in_training_order(
        islice((epoch.window(number % per_epoch) for number in count()), windows),
        [],
        [],
        drafters=drafters,
        save_after=range(1, windows + 1),
    )
    origin = Origin(
        fingerprint=store.fingerprint,
        plan_digests=(epoch.plan.digest(),),
        target_settings="",
        target_weights="",
        settings={},
        rounding={},
    )
    outcome = Outcome(folder)
    try:
        with run.training_run(config, store, staff, work, windows, saving=Saving(folder, origin)) as running:
            for result in running.results:
                if isinstance(result, WindowResult):
                    outcome.windows.append(result)
    except StageError as error:
        outcome.error = error
    return outcome


def changed(config, **pipeline):
    training = {"max_bad_samples": pipeline.pop("max_bad_samples", 0)}
    return msgspec.structs.replace(
        config,
        pipeline=msgspec.structs.replace(config.pipeline, **{"engine": "process", **pipeline}),
        training=msgspec.structs.replace(config.training, **training),
    )


@pytest.fixture(scope="module")
def fork_server():
    """One that has loaded what the workers need, whatever tests before these needed."""
    multiprocessing.forkserver._forkserver._stop()
    with open_engine("process", preload=("dflash.training.run", MODELLING)) as pipeline:
        pipeline.start_apart("nothing", process_stages.nothing)
    run._Rendezvous(2)  # the first store of several drafters leaves a pipe of its library's loop


@pytest.fixture
def nothing_is_left(fork_server, tmp_path, monkeypatch):
    """No process, thread, shared memory, descriptor or temporary file. Those that hang get little time."""
    monkeypatch.setattr(run, "open_engine", partial(open_engine, grace=1.0))
    threads, shared, descriptors = (
        threading.active_count(),
        os.listdir("/dev/shm"),
        os.listdir("/proc/self/fd"),
    )
    yield
    gc.collect()  # an exception's frames hold what they used
    assert not multiprocessing.active_children()
    assert threading.active_count() <= threads
    assert os.listdir("/dev/shm") == shared
    assert len(os.listdir("/proc/self/fd")) <= len(descriptors)
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("fault", TABLE)
def test_a_fault_ends_the_run_with_its_cause(small_config, nothing_is_left, tmp_path, fault):
    settings, expected = TABLE[fault]
    outcome = train(changed(small_config, **settings), tmp_path, fault)
    assert outcome.error is not None, "it has struck"
    assert outcome.error.exit_code == ExitCode.TRIAL_FAILED
    line = re.fullmatch(expected, str(outcome.error))
    assert line, str(outcome.error)
    window = int(line["window"])
    assert window >= Fault.parse(fault).window
    last = read_checkpoint(outcome.checkpoints[-1]).header.windows
    assert window - 2 <= last <= window, "what was trained before is safe, but for what was in flight"


def test_all_drafters_leave_out_the_same_bad_sample(small_config, nothing_is_left, tmp_path):
    """None of them skips anything, so all go on together; threads and processes to the same bits."""
    found = {}
    for engine in ("process", "thread"):
        config = changed(small_config, engine=engine, drafters=2, max_bad_samples=1)
        folder = tmp_path / engine
        outcome = train(config, folder, "nan:target:0@window=2", windows=5)
        assert outcome.error is None
        assert [len(window.bad_rows) for window in outcome.windows] == [0, 0, 1, 0, 0]
        checkpoint = read_checkpoint(outcome.checkpoints[-1])
        assert list(checkpoint.header.bad_rows) == outcome.windows[2].bad_rows
        figures = [(one.loss, one.weight, one.bad_rows, one.gradient_norm) for one in outcome.windows]
        found[engine] = figures, {name: one.numpy().tobytes() for name, one in checkpoint.tensors.items()}
    assert found["process"] == found["thread"]


def test_a_run_on_threads_ends_by_its_faults_too(small_config, tmp_path):
    for fault in ("raise:target:0@window=4", "short-read:store@window=4", "disk-full:checkpoint@window=4"):
        outcome = train(changed(small_config, engine="thread"), tmp_path, fault)
        assert re.fullmatch(TABLE[fault][1], str(outcome.error))


@pytest.fixture
def options(small_config, tmp_path):
    """Of a small run of ``dflash train`` with processes."""
    from dflash.config import dump_config

    file = tmp_path / "run.toml"
    file.write_text(dump_config(changed(small_config, targets=2)))
    return ["--config", str(file), "--set", "training.checkpoint_every=1"]


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    """``dflash train`` in a session of its own."""
    return subprocess.Popen(
        command("dflash", "train", *arguments),
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_a_killed_target_ends_the_command_and_the_run_goes_on_from_there(options, tmp_path):
    before = os.listdir("/dev/shm")
    out = ["--windows", "8", "--out", str(tmp_path / "run")]
    process = start(*options, *out, "--inject", "kill:target:0@window=3", cwd=tmp_path)
    text, _ = process.communicate()
    assert process.returncode == ExitCode.TRIAL_FAILED, text
    assert "Traceback" not in text
    (line,) = [line for line in text.splitlines() if line.startswith("dflash: error: ")]
    assert re.search(rf"stage target-0 failed {WORK}: {KILLED}; .* dflash train --resume .*", line)
    assert nobody_is_left(process.pid)
    assert os.listdir("/dev/shm") == before
    assert not list(tmp_path.rglob("*.tmp"))
    process = start("--resume", str(tmp_path / "run"), cwd=tmp_path)
    text, _ = process.communicate()
    assert process.returncode == ExitCode.OK, text
    assert (tmp_path / "run" / "drafter" / "model.safetensors").exists()


def test_ctrl_c_twice_ends_a_run_whose_worker_hangs(options, tmp_path):
    """The first would wait for the windows under way; a terminal sends both to everyone."""
    hangs = ["--inject", "hang:target:0@window=1", "--out", str(tmp_path / "run")]
    process = start(*options, *hangs, "--set", "pipeline.targets=1", cwd=tmp_path)
    checkpoint = tmp_path / "run" / FOLDER / "window-00000001.safetensors"
    while not checkpoint.exists() and process.poll() is None:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if "stopping" in line:
            break
    assert process.poll() is None, seen
    os.killpg(process.pid, signal.SIGINT)
    text, _ = process.communicate()
    assert process.returncode == ExitCode.INTERRUPTED, seen + text
    assert "Traceback" not in seen + text
    assert nobody_is_left(process.pid)
    assert read_checkpoint(checkpoint).header.windows == 1


def test_ctrl_c_while_the_models_load_leaves_nobody(options, tmp_path):
    process = start(*options, "--out", str(tmp_path / "run"), cwd=tmp_path)
    # The command, its fork server, the tracker of that, and a worker.
    while len(members(process.pid)) < 4 and process.poll() is None:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    text, _ = process.communicate()
    assert process.returncode == ExitCode.INTERRUPTED, text
    assert "Traceback" not in text
    assert nobody_is_left(process.pid)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("boom", "with one of kill:target, "), ("kill:target@window=1", "pipeline.engine=process")],
)
def test_a_fault_that_cannot_be_is_a_usage_error(capsys, text, reason):
    arguments = ["train", "--inject", text, "--set", "pipeline.engine=thread"]
    assert run_command(cli, "dflash", arguments) == ExitCode.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line
