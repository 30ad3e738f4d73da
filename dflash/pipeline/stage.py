"""One running stage as its engine sees it, and the two things that a stage function may say about itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter_ns
from typing import Any, Literal

from dflash.errors import DflashError, StageError
from dflash.pipeline.operation import Operation
from dflash.pipeline.telemetry import Activity, StageClock


class Stage:
    """What a stage is doing, has done, and waits for. The caller's own thread has one too."""

    __slots__ = (
        "_before",
        "at_barrier",
        "clock",
        "has_begun",
        "name",
        "progress_ns",
        "stacks",
        "tell",
        "thread",
        "waits_for",
        "work",
    )

    def __init__(self, name: str, activity: Activity) -> None:
        self.name = name
        self.clock = StageClock(name, activity)
        self.waits_for: Operation | None = None
        self.work: object = None
        """What it works on, which says by ``str`` what that is; None between two of them."""
        self.has_begun = False
        """Whether it has had to do with a channel."""
        self.at_barrier = False
        """Whether it waits for the others of its group."""
        self.tell: Callable[[str, Any], None] | None = None
        """Told of each change of ``work`` and ``at_barrier``: which one, and its value as it can travel."""
        self.stacks: Callable[[], str] | None = None
        """The stacks of its own process, if it has one."""
        self.thread: int | None = None
        """The identity of its own thread, if it has one."""
        self.progress_ns = perf_counter_ns()
        """When it last had to do with a channel."""
        self._before: Activity = "busy"

    def wait(self, operation: Operation) -> None:
        """The stage is held by ``operation``."""
        self._before = self.clock.switch(operation.activity)
        if self._before == "barrier":
            # What is waited for there is the others of a group, whatever it is waited on.
            self.clock.switch("barrier")
        self.waits_for = operation

    def go_on(self) -> None:
        """The stage continues with what it did before."""
        self.waits_for = None
        self.progressed()
        self.clock.switch(self._before)

    def progressed(self) -> None:
        """The stage is alive."""
        self.progress_ns = perf_counter_ns()

    def works_on(self, what: object) -> None:
        """What its messages name if it fails or hangs."""
        self.work = what
        if self.tell is not None:
            self.tell("work", None if what is None else str(what))

    def waits_at_barrier(self, at_barrier: bool) -> None:
        """It begins, or ends, to wait for the others of its group."""
        self.at_barrier = at_barrier
        if self.tell is not None:
            self.tell("barrier", at_barrier)


current_stage: ContextVar[Stage | None] = ContextVar("current_stage", default=None)
"""The stage whose code is running; None outside a pipeline, where ``span`` has nothing to measure."""


@contextmanager
def span(activity: Literal["copy", "barrier"]) -> Iterator[None]:
    """Count the block as ``activity``, not as ``busy``.

    Waiting for a channel inside of ``copy`` is counted apart; a ``barrier`` is nothing but waiting.
    """
    stage = current_stage.get()
    if stage is None:
        yield
        return
    before = stage.clock.switch(activity)
    if activity == "barrier":
        stage.waits_at_barrier(True)
    try:
        yield
    finally:
        if activity == "barrier":
            stage.waits_at_barrier(False)
        stage.clock.switch(before)


class _WorkNote(str):
    """A note on an exception that says what its stage was working on."""

    __slots__ = ()


@contextmanager
def working_on(what: object) -> Iterator[None]:
    """Say what the block works on ("micro-batch 17"), for the message if it fails or hangs."""
    stage = current_stage.get()
    before = None if stage is None else stage.work
    if stage is not None:
        stage.works_on(what)
    try:
        yield
    except Exception as error:
        name_work(error, what)
        raise
    finally:
        if stage is not None:
            stage.works_on(before)


def name_work(error: BaseException, what: object) -> None:
    """Note on ``error`` what its stage was working on."""
    error.add_note(_WorkNote(f"while working on {what}"))


def stage_error(stage: str, cause: BaseException) -> StageError:
    """``cause``, raised in ``stage``, as one line; with the exit code of ``cause`` if that has one."""
    # The innermost block adds its note first, and it knows best.
    note = next((f" {note}" for note in getattr(cause, "__notes__", ()) if isinstance(note, _WorkNote)), "")
    text = " ".join(str(cause).split())
    if not isinstance(cause, DflashError):
        text = f"{type(cause).__name__}: {text}" if text else type(cause).__name__
    error = StageError(f"stage {stage} failed{note}: {text}")
    error.__cause__ = cause
    if isinstance(cause, DflashError):
        error.exit_code = cause.exit_code
    return error
