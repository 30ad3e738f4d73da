"""Faults on purpose, for tests and for drills: ``dflash train --inject kill:target:1@window=3``.

    fault = Fault.parse("kill:target:1@window=3")
    fault.check(config)
    staff, store = fault.into(staff, store)
    with training_run(config, store, staff, work, windows) as run: ...

A fault sits in what the workers of a run are given: a target, a drafter, the token store. Nothing in the
pipeline knows of it. It strikes once, at the first training micro-batch of its window or a later one that
comes to its worker.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, SupportsIndex, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dflash.config import Config
from dflash.data.store import TokenStore
from dflash.errors import UsageError
from dflash.models.target import Target
from dflash.pipeline.stage import current_stage
from dflash.pipeline.work import Work
from dflash.training.models import Staff, Trainee
from dflash.training.placement import place

P = ParamSpec("P")
Result = TypeVar("Result")

FAULTS = {
    "kill": ("target", "drafter", "reduction"),
    "raise": ("target", "drafter"),
    "hang": ("target", "drafter", "reduction"),
    "deaf": ("target", "drafter"),
    "nan": ("target",),
    "short-read": ("store",),
    "disk-full": ("checkpoint",),
}
"""What can go wrong, and where. ``deaf`` hangs and ignores every signal that can be ignored; ``reduction`` is
a drafter in the middle of the sum over all drafters; ``nan`` spoils the features of one sample."""

_TEXT = re.compile(r"(?P<kind>[\w-]+):(?P<stage>\w+)(?::(?P<number>\d+))?@window=(?P<window>\d+)")


@dataclass(frozen=True)
class Fault:
    """``KIND:STAGE[:NUMBER]@window=W``."""

    kind: str
    stage: str
    number: int
    window: int

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Raises ``UsageError``, which lists what there is."""
        match = _TEXT.fullmatch(text)
        if match is None or match["stage"] not in FAULTS.get(match["kind"], ()):
            known = ", ".join(f"{kind}:{stage}" for kind, stages in FAULTS.items() for stage in stages)
            raise UsageError(
                f"--inject {text!r}: write KIND:STAGE[:NUMBER]@window=W, e.g. kill:target:1@window=3, "
                f"with one of {known}"
            )
        return cls(match["kind"], match["stage"], int(match["number"] or 0), int(match["window"]))

    def __str__(self) -> str:
        return f"{self.kind}:{self.stage}:{self.number}@window={self.window}"

    def check(self, config: Config) -> None:
        """Raises ``UsageError`` if a run with these settings has not what the fault needs."""
        settings = config.pipeline
        workers = {"target": settings.targets, "drafter": settings.drafters, "reduction": settings.drafters}
        there = workers.get(self.stage, 1)
        if self.number >= there:
            raise UsageError(f"--inject {self}: {self.stage}s are numbered from 0, and there are {there}")
        if self.stage == "reduction" and settings.drafters == 1:
            raise UsageError(f"--inject {self}: one drafter has nothing to reduce, take --topology 1:2")
        needs_process = self.kind in ("kill", "deaf") or self.stage == "reduction"
        if needs_process and place(settings).engine != "process":
            raise UsageError(f"--inject {self}: needs workers with processes, --set pipeline.engine=process")

    def into(self, staff: Staff, store: TokenStore) -> tuple[Staff, TokenStore]:
        """What the workers of a run are given, with the fault in it."""
        if self.stage == "store":
            return staff, _ShortStore(store, self)
        return _FaultyStaff(staff, self), store

    def is_due(self) -> bool:
        """Whether the stage that runs here works on the fault's window, or has missed it."""
        stage = current_stage.get()
        work = None if stage is None else stage.work
        return isinstance(work, Work) and work.purpose == "train" and work.window >= self.window

    def strike(self) -> None:
        """End this worker in the way of the fault."""
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "raise":
            raise RuntimeError(f"injected, {self}")
        if self.kind == "deaf":
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_IGN)
        threading.Event().wait()


@dataclass(frozen=True)
class _FaultyStaff:
    staff: Staff
    fault: Fault

    def target_of(self, number: int) -> Callable[[], Target]:
        load = self.staff.target_of(number)
        at_home = self.fault.stage == "target" and self.fault.number == number
        return partial(_faulty_target, load, self.fault) if at_home else load

    def drafter_of(self, rank: int) -> Callable[[], Trainee]:
        load = self.staff.drafter_of(rank)
        at_home = self.fault.stage in _LOADERS and self.fault.number == rank
        return partial(_LOADERS[self.fault.stage], load, self.fault) if at_home else load


def _faulty_target(load: Callable[[], Target], fault: Fault) -> Target:
    target: Any = load()
    wrap = _spoiling if fault.kind == "nan" else _striking
    target.features = wrap(target.features, fault)
    target.packed_features = wrap(target.packed_features, fault)
    return target  # type: ignore[no-any-return]


def _faulty_drafter(load: Callable[[], Trainee], fault: Fault) -> Trainee:
    drafter, head = load()
    drafter.encode = _striking(drafter.encode, fault)  # type: ignore[method-assign]
    return drafter, head


def _faulty_reduction(load: Callable[[], Trainee], fault: Fault) -> Trainee:
    from torch import distributed

    # Gradients go by one of these; what the drafters tell each other has gone before.
    distributed.all_gather = _striking(distributed.all_gather, fault)
    distributed.all_reduce = _striking(distributed.all_reduce, fault)
    return load()


def _faulty_checkpoint(load: Callable[[], Trainee], fault: Fault) -> Trainee:
    from safetensors import torch as safetensors

    save_file = safetensors.save_file

    def full(tensors: dict[str, Tensor], filename: str, metadata: dict[str, str]) -> None:
        save_file(tensors, filename, metadata)
        if json.loads(metadata["dflash"])["windows"] >= fault.window:
            safetensors.save_file = save_file
            os.truncate(filename, os.path.getsize(filename) // 2)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    safetensors.save_file = full
    return load()


_LOADERS = {"drafter": _faulty_drafter, "reduction": _faulty_reduction, "checkpoint": _faulty_checkpoint}


class _ShortStore(TokenStore):
    """A sample's last token is missing, once."""

    def __init__(self, store: TokenStore, fault: Fault) -> None:
        vars(self).update(vars(store))
        self._fault = fault
        self._has_struck = False

    def sample(self, row: SupportsIndex) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        ids, mask = super().sample(row)
        if self._has_struck or not self._fault.is_due():
            return ids, mask
        self._has_struck = True
        return ids[:-1], mask[:-1]


def _striking(function: Callable[P, Result], fault: Fault) -> Callable[P, Result]:
    def instead(*args: P.args, **kwargs: P.kwargs) -> Result:
        if fault.is_due():
            fault.strike()
        return function(*args, **kwargs)

    return instead


def _spoiling(function: Callable[P, Tensor], fault: Fault) -> Callable[P, Tensor]:
    struck: list[bool] = []

    def instead(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        features_TF = function(*args, **kwargs)
        if not struck and fault.is_due():
            struck.append(True)
            features_TF = features_TF.clone()
            features_TF[0] = float("nan")
        return features_TF

    return instead
