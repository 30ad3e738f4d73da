"""A run's state after a window, in one file: from it the run goes on as if it had never stopped.

The commit point is the optimizer step. What was in flight is not saved: the target is frozen and the plan can
be made again, so in-flight work is computed again. A file is written to a temporary name, synced, and
renamed, so whatever kills the run leaves whole checkpoints only.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from dflash.data.atomic import atomic_writer
from dflash.errors import DflashError, UsageError

VERSION = 1
FOLDER = "checkpoints"
_NAME = re.compile(r"window-(\d{8})\.safetensors")


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What a run's results are a function of, beside its weights. Another one is another run."""

    fingerprint: str
    """of the token store"""
    plan_digests: tuple[str, ...]
    """of every epoch"""
    target: str
    """hash of the target's weights and settings"""
    settings: dict[str, Any]
    """all sections that decide results: without how fast, where and how long"""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint says about itself."""

    version: int = VERSION
    windows: int
    """committed until now"""
    epoch: int
    """of the last committed window"""
    bad_samples: int
    """left out until now because their features were not finite"""
    held_out_loss: float | None
    """of the last evaluation"""
    drafters: int
    """reductions over another number of drafters are rounded otherwise"""
    origin: Origin


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint in memory."""

    header: Header
    tensors: dict[str, Any]
    """weights as ``drafter.NAME``, the optimizer's moments as ``optimizer.KIND.NAME``; on the CPU"""


def path_of(folder: Path, windows: int) -> Path:
    """Where the checkpoint after ``windows`` windows of a run's ``folder`` is."""
    return folder / FOLDER / f"window-{windows:08d}.safetensors"


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write the file whole or not at all.

    Raises:
        DflashError: it cannot be written; nothing is left of it.
    """
    from safetensors.torch import save

    content = save(checkpoint.tensors, {"dflash": msgspec.json.encode(checkpoint.header).decode()})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_writer(path) as file:
            file.write(content)
    except OSError as error:
        raise DflashError(
            f"cannot write the checkpoint {path}: {error.strerror}; the one before it is whole"
        ) from error


def read_header(path: Path) -> Header:
    """Only what a checkpoint says about itself; UsageError if it is none."""
    return _read(path, with_tensors=False).header


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        UsageError: no such file, a damaged one, or one of another version.
    """
    return _read(path, with_tensors=True)


def _read(path: Path, *, with_tensors: bool) -> Checkpoint:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get("dflash", "")
            tensors = {name: file.get_tensor(name) for name in file.keys()} if with_tensors else {}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{path} is no checkpoint that can be read: {error}") from error
    try:
        version = json.loads(text)["version"]
        if version != VERSION:
            raise UsageError(f"{path} is a checkpoint of version {version}; this dflash reads {VERSION}")
        header = msgspec.json.decode(text, type=Header)
    except (ValueError, KeyError, TypeError, msgspec.DecodeError) as error:
        raise UsageError(f"{path} is no checkpoint of dflash: {error}") from error
    return Checkpoint(header=header, tensors=tensors)


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run's folder, oldest first."""
    return sorted(
        path for path in (folder / FOLDER).glob("window-*.safetensors") if _NAME.fullmatch(path.name)
    )


def prune(folder: Path, keep_last: int) -> None:
    """Remove all but the last ``keep_last`` checkpoints and the one with the least held-out loss."""
    found = checkpoints(folder)
    losses = {path: read_header(path).held_out_loss for path in found}
    known = [path for path in found if losses[path] is not None]
    best = min(known, key=lambda path: losses[path] or 0.0, default=None)
    for path in found[:-keep_last]:
        if path != best:
            path.unlink(missing_ok=True)


def refuse_another_run(found: Origin, wanted: Origin, path: Path) -> None:
    """Refuse to go on from a checkpoint of another run, naming what differs.

    Raises:
        UsageError: data, target, plans or settings differ.
    """
    if found.fingerprint != wanted.fingerprint:
        raise UsageError(
            f"{path} is of another data set: its fingerprint is {found.fingerprint[:12]}, "
            f"this store's {wanted.fingerprint[:12]}"
        )
    if found.target != wanted.target:
        raise UsageError(
            f"{path} is of another target: its hash is {found.target[:12]}, this one's {wanted.target[:12]}"
        )
    for section in found.settings.keys() | wanted.settings.keys():
        mine, its = wanted.settings.get(section, {}), found.settings.get(section, {})
        for key in sorted(mine.keys() | its.keys()):
            if mine.get(key) != its.get(key):
                raise UsageError(
                    f"{path} is of a run with {section}.{key}={its.get(key)!r}, not {mine.get(key)!r}: "
                    "resume with the settings of the run, or start another"
                )
    pairs = zip(found.plan_digests, wanted.plan_digests, strict=False)
    for epoch, (its_digest, digest) in enumerate(pairs):
        if its_digest != digest:
            raise UsageError(
                f"{path} is of other plans: epoch {epoch} has digest {its_digest[:12]}, now {digest[:12]}: "
                "the strategy, or what it is built on, has changed"
            )
    if len(found.plan_digests) != len(wanted.plan_digests):
        raise UsageError(
            f"{path} is of a run of {len(found.plan_digests)} epochs, not {len(wanted.plan_digests)}"
        )


class CheckpointWriter:
    """Writes in a thread of its own, one at a time.

    ``write`` returns once the state is copied; ``join`` waits for the file and raises what went wrong. Call
    it before the state changes again if the copy must not exist twice.
    """

    def __init__(self, write: Callable[[Path, Checkpoint], None] = write_checkpoint) -> None:
        self._write = write
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def write(self, path: Path, header: Header, tensors: dict[str, Tensor]) -> None:
        """Begin to write; ``tensors`` are copied first."""
        self.join()
        copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
        checkpoint = Checkpoint(header=header, tensors=copies)
        self._thread = threading.Thread(target=self._run, args=(path, checkpoint), name="dflash-checkpoint")
        self._thread.start()

    def join(self) -> None:
        """Wait for what is being written. Raises what writing it raised, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, path: Path, checkpoint: Checkpoint) -> None:
        torch.set_num_threads(1)
        try:
            self._write(path, checkpoint)
        except BaseException as error:
            self._error = error
