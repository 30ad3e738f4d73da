"""Runs of `dflash train`, and what must be the same of two of them."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from dflash.cli import cli
from dflash.command_line import run_command
from dflash.config import dump_config, load_config
from dflash.data.store import StoreSample, write_store
from dflash.training.checkpoint import checkpoints, read_checkpoint
from dflash.training.step import WindowResult
from dflash.training.watch import Watch

OF_THE_MOMENT = ("committed_at", "bottleneck")
"""what a line of metrics.jsonl tells of the machine and not of the run"""


def run_settings(folder: Path, target: Path, *, samples: int, windows: int, more: tuple[str, ...]) -> Path:
    """A file with the settings of a run on a store of its own, of whose samples a tenth is held out.

    Samples have 4..90 tokens, micro-batches 400: 60 training samples make about 11.
    """
    rng = np.random.default_rng(0)

    def drawn():
        for row in range(samples):
            length = int(rng.integers(4, 91))
            mask = np.zeros(length, np.uint8)
            mask[length // 3 :] = 1
            tokens = np.minimum(rng.geometric(0.1, length), 95)
            yield StoreSample(tokens, mask, f"sample {row}", row >= samples * 10 // 11)

    write_store(folder / "store.arrow", drawn(), {})
    settings = (
        f"data.store={folder / 'store.arrow'}",
        f"data.target={target}",
        "data.allow_untrained_target=true",
        "batching.token_budget=400",
        "batching.strategy=random",
        "drafter.block_size=8",
        "drafter.max_anchors=4",
        "drafter.anchor_stride=4",
        "training.epochs=1000",
        f"training.windows={windows}",
    )
    file = folder / "run.toml"
    file.write_text(dump_config(load_config(None, (*settings, *more))))
    return file


def train(*arguments: object) -> int:
    """The exit code of ``dflash train``, in this process."""
    return run_command(cli, "dflash", ["train", *map(str, arguments)])


def train_apart(arguments: tuple[str, ...], log: Path, struck: Callable[[], None] | None = None) -> None:
    """The same as the main function of another process, which is the first of a group.

    ``struck`` prepares what is to befall it, at a moment of the run and not of a clock.
    """
    os.setpgid(0, 0)
    # A server that other tests have started has them blocked; a shell has not.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    with log.open("w") as file:
        os.dup2(file.fileno(), 2)
    if struck is not None:
        struck()
    sys.exit(train(*arguments))


def terminated_at_window(window: int) -> None:
    """SIGTERM, as a scheduler sends it, once the window's result is told."""
    _at_window(window, lambda: os.kill(os.getpid(), signal.SIGTERM))


def killed_at_window(window: int) -> None:
    """kill -9 of the whole group once the window's result is told."""
    _at_window(window, _kill_all)


def killed_at_checkpoint(number: int) -> None:
    """kill -9 of the whole group when a checkpoint's bytes are written and it has no name yet."""
    import safetensors.torch

    save_file, written = safetensors.torch.save_file, count(1)

    def save(*arguments: Any) -> None:
        save_file(*arguments)
        if next(written) == number:
            _kill_all()

    safetensors.torch.save_file = save


def _at_window(window: int, strike: Callable[[], None]) -> None:
    told = Watch.result

    def result(self: Watch, of: Any) -> None:
        told(self, of)
        if isinstance(of, WindowResult) and of.window == window:
            strike()

    Watch.result = result  # type: ignore[method-assign]


def _kill_all() -> None:
    os.killpg(0, signal.SIGKILL)


@dataclass(frozen=True)
class Outcome:
    """What is left of a run: all that must not depend on what happened on the way."""

    metrics: list[dict[str, Any]]
    header: Any
    tensors: dict[str, bytes]
    """of the last checkpoint, the optimizer's moments among them"""
    drafter: bytes

    @property
    def windows(self) -> list[int]:
        return [line["window"] for line in self.metrics if line["type"] == "window"]


def outcome(folder: Path) -> Outcome:
    last = read_checkpoint(list(checkpoints(folder).values())[-1])
    return Outcome(
        metrics=metrics(folder),
        header=last.header,
        tensors={name: tensor.numpy().tobytes() for name, tensor in last.tensors.items()},
        drafter=(folder / "drafter" / "model.safetensors").read_bytes(),
    )


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{key: value for key, value in line.items() if key not in OF_THE_MOMENT} for line in lines]


@contextmanager
def stopped_after(windows: int, monkeypatch: Any):
    """As Ctrl-C would, asks a run to stop once it has handed out so many windows."""
    from dflash.training import trainer

    class Stop:
        asked_for = 0

        @property
        def asked(self) -> bool:
            self.asked_for += 1
            return self.asked_for > windows

    @contextmanager
    def stop(_tell):
        yield Stop()

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "graceful_stop", stop)
        yield
