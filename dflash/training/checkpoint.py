"""A run's state after a window, in one file: from it the run goes on as if it had never stopped.

The commit point is the optimizer step. What was in flight is not saved: the target is frozen and the plan can
be made again, so in-flight work is computed again. A file is written to a temporary name, synced, and
renamed, so whatever kills the run leaves whole checkpoints only.
"""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from dflash.data.atomic import atomic_writer
from dflash.errors import DflashError, UsageError

VERSION = 1
FOLDER = "checkpoints"
_NAME = re.compile(r"window-(\d{8,})\.safetensors")


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What a run's results are a function of, beside its weights. Another one is another run."""

    fingerprint: str
    """of the token store"""
    plan_digests: tuple[str, ...]
    """of every epoch"""
    target_settings: str
    """hash of the target's config.json"""
    target_weights: str
    """hash of the target's weights"""
    settings: dict[str, dict[str, Any]]
    """all sections that decide results: without how fast, where and how often looked at"""
    rounding: dict[str, Any]
    """what decides nothing but how sums are rounded; a run may go on with another"""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint says about itself."""

    version: int = VERSION
    windows: int
    """committed until now"""
    epoch: int
    """of the last committed window"""
    results: int
    """of windows and evaluations, until now: so many lines of metrics.jsonl came before"""
    bad_rows: tuple[int, ...]
    """store rows that were left out until now because their features were not finite"""
    held_out_loss: float | None
    """of the last evaluation"""
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
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    described = {"dflash": msgspec.json.encode(checkpoint.header).decode()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_writer(path) as file:
            # By its name, so that the bytes do not exist in memory a second time.
            save_file(checkpoint.tensors, file.name, described)
    except (OSError, SafetensorError) as error:
        raise DflashError(
            f"cannot write the checkpoint {path}: {error}; nothing is left of it, make room for it"
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


def checkpoints(folder: Path) -> dict[int, Path]:
    """The checkpoints of a run's folder by their number of windows, oldest first."""
    names = ((_NAME.fullmatch(path.name), path) for path in (folder / FOLDER).glob("window-*.safetensors"))
    return dict(sorted((int(name[1]), path) for name, path in names if name))


def prune(folder: Path, keep_last: int, until: int) -> None:
    """Remove all but the last ``keep_last`` checkpoints and the one with the least held-out loss.

    Those after more than ``until`` windows neither count nor go.
    """
    found = [path for windows, path in checkpoints(folder).items() if windows <= until]
    losses = {path: _held_out_loss(path) for path in found}
    known = {path: loss for path, loss in losses.items() if loss is not None}
    best = min(known, key=lambda path: known[path], default=None)
    for path in found[:-keep_last]:
        if path != best:
            path.unlink(missing_ok=True)


def _held_out_loss(path: Path) -> float | None:
    try:
        return read_header(path).held_out_loss
    except UsageError:
        # Whatever has become of it, it is not the best, and no reason to end a run.
        return None


def refuse_another_run(found: Origin, wanted: Origin, path: Path) -> None:
    """Refuse to go on from a checkpoint of another run, naming what differs.

    Raises:
        UsageError: data, target, settings or plans differ.
    """
    for what, its, mine in (
        ("data set: its fingerprint", found.fingerprint, wanted.fingerprint),
        ("target: the hash of its config.json", found.target_settings, wanted.target_settings),
        ("target: the hash of its weights", found.target_weights, wanted.target_weights),
    ):
        if its != mine:
            raise UsageError(f"{path} is of another {what} is {its[:12]}, not {mine[:12]}")
    for section in sorted(found.settings.keys() | wanted.settings.keys()):
        its_keys, my_keys = found.settings.get(section, {}), wanted.settings.get(section, {})
        for key in sorted(its_keys.keys() | my_keys.keys()):
            if its_keys.get(key) != my_keys.get(key):
                raise UsageError(
                    f"{path} is of a run with {section}.{key}={its_keys.get(key)!r}, not "
                    f"{my_keys.get(key)!r}: resume with the settings of the run, or start another"
                )
    pairs = zip(found.plan_digests, wanted.plan_digests, strict=False)
    for epoch, (its, mine) in enumerate(pairs):
        if its != mine:
            raise UsageError(
                f"{path} is of other plans: that of epoch {epoch} has digest {its[:12]}, not {mine[:12]}: "
                "the strategy, or what it is built on, has changed"
            )
    if len(found.plan_digests) != len(wanted.plan_digests):
        raise UsageError(
            f"{path} is of a run of {len(found.plan_digests)} epochs, not {len(wanted.plan_digests)}"
        )


class CheckpointWriter:
    """Writes in a thread of its own, one at a time.

    ``write`` returns once the state is copied, so that it may change; ``join`` waits for the file and raises
    what went wrong. There is never a second copy: the next ``write`` waits too.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def write(self, path: Path, header: Header, tensors: dict[str, Tensor]) -> None:
        """Begin to write. Raises what the last write raised, if nobody has asked yet."""
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
            write_checkpoint(path, checkpoint)
        except BaseException as error:
            self._error = error
