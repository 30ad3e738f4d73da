"""The folder of a run: settings, manifest, metrics, checkpoints, and the drafter."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec

from dflash.config import Config, dump_config
from dflash.data.atomic import atomic_writer, remove_leftovers
from dflash.errors import DflashError, UsageError
from dflash.models.drafter import Drafter
from dflash.models.export import write_drafter
from dflash.models.published_config import ServingFacts
from dflash.models.shape import DrafterShape
from dflash.training.checkpoint import FOLDER, checkpoints, read_checkpoint
from dflash.training.step import EvaluationResult, WindowResult

SETTINGS, MANIFEST, METRICS = "config.toml", "manifest.json", "metrics.jsonl"


def new_folder(out: Path | None) -> Path:
    """Where a new run goes; UsageError if one is there already."""
    folder = out or Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S")
    if (folder / SETTINGS).exists() or lines_of_metrics(folder):
        raise UsageError(
            f"{folder} already holds a run: give another folder with --out, or go on with --resume {folder}"
        )
    return folder


def with_absolute_paths(config: Config) -> Config:
    """The settings as they can be read again from wherever a run is gone on with."""

    def absolute(path: str) -> str:
        return path if path == "sample" else str(Path(path).absolute())

    data = msgspec.structs.replace(
        config.data, store=absolute(config.data.store), target=absolute(config.data.target)
    )
    init = config.training.init
    training = msgspec.structs.replace(config.training, init=None if init is None else absolute(init))
    return msgspec.structs.replace(config, data=data, training=training)


def write_settings(folder: Path, config: Config, manifest: dict[str, Any], target: dict[str, Any]) -> None:
    """Write manifest.json, target.json and config.toml, each whole or not at all."""
    for name, text in (
        (MANIFEST, json.dumps(manifest, indent=2) + "\n"),
        ("target.json", json.dumps(target, indent=2) + "\n"),
        # The last one: with it the folder holds a run.
        (SETTINGS, dump_config(config)),
    ):
        with atomic_writer(folder / name) as file:
            file.write(text.encode())


def starts(folder: Path) -> list[dict[str, Any]]:
    """What the manifest tells of the starts of the run until now."""
    try:
        known: list[dict[str, Any]] = json.loads((folder / MANIFEST).read_text())["starts"]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"{folder / MANIFEST} is no manifest of a run: {error}") from error
    return known


def lines_of_metrics(folder: Path) -> int:
    """Whole lines of metrics.jsonl; what was killed at it may have left a part of one."""
    try:
        return (folder / METRICS).read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


class Metrics:
    """metrics.jsonl of a run that goes on: a line for each window and each evaluation, in their order."""

    def __init__(self, file: FileIO) -> None:
        self._file = file

    def add(self, result: WindowResult | EvaluationResult, bottleneck: str) -> None:
        """Write a line, so that it is there whatever kills the run. DflashError if it cannot be written."""
        kind = "window" if isinstance(result, WindowResult) else "evaluation"
        entry = {"type": kind, **asdict(result), "bottleneck": bottleneck}
        line = json.dumps(entry, allow_nan=False).encode() + b"\n"
        try:
            written = self._file.write(line)
            if written < len(line):
                # What is left says why it was not taken.
                self._file.write(line[written:])
        except OSError as error:
            raise DflashError(f"cannot write {self._file.name}: {error.strerror}") from error


@contextmanager
def taken(folder: Path, windows: int, results: int) -> Iterator[Metrics]:
    """Have a run's folder for oneself, as it was after so many windows and results; make it if need be.

    What was written later, or was left half written by what killed the run, is removed.

    Raises:
        UsageError: another process has it, or it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Without a buffer: one that cannot be written out would be tried again on closing.
        file = (folder / METRICS).open("ab", buffering=0)
    except OSError as error:
        raise UsageError(f"cannot make the folder {folder}: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"another process is training in {folder}: wait for it, or end it") from error
        for place in (folder, folder / FOLDER):
            remove_leftovers(place)
        for after, path in checkpoints(folder).items():
            if after > windows:
                path.unlink()
        lines = (folder / METRICS).read_bytes().splitlines(keepends=True)
        file.truncate(sum(len(line) for line in lines[:results] if line.endswith(b"\n")))
        yield Metrics(file)


def write_last_drafter(folder: Path, shape: DrafterShape, facts: ServingFacts) -> Path | None:
    """Write the weights of the last checkpoint as drafter/; None where there is no checkpoint."""
    found = checkpoints(folder)
    if not found:
        return None
    prefix = "drafter."
    tensors = read_checkpoint(found[max(found)]).tensors
    drafter = Drafter(shape)
    drafter.load_state_dict(
        {name.removeprefix(prefix): one for name, one in tensors.items() if name.startswith(prefix)}
    )
    write_drafter(folder / "drafter", drafter, facts)
    return folder / "drafter"
