"""When windows ended, on the clock of the device that trained them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from dflash.errors import TrialError
from dflash.training.placement import Placement
from dflash.training.step import WindowResult


class WindowClock(AbstractContextManager[Any], Protocol):
    """Enter it around the run, ask it when the run has ended."""

    def seconds_between(self, results: Sequence[WindowResult]) -> list[float]:
        """float[w - 1]: seconds from each window's commit to the next one's; ``results`` are all windows."""


def window_clock(placement: Placement) -> WindowClock:
    """The clock for windows that are trained there.

    A drafter with a process of its own is out of reach of events, but its commit waits for its device.
    """
    on_cuda = placement.drafters[0].startswith("cuda")
    return EventClock() if on_cuda and placement.engine != "process" else HostClock()


class HostClock:
    """For a CPU: a window has ended when its commit returns, and the trainer notes that."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def seconds_between(self, results: Sequence[WindowResult]) -> list[float]:
        return [after.committed_at - before.committed_at for before, after in pairwise(results)]


class Event(Protocol):
    """The part of ``torch.cuda.Event`` that is used."""

    def record(self, stream: Any = None) -> None: ...
    def synchronize(self) -> None: ...
    def elapsed_time(self, end_event: Any) -> float: ...


class EventClock:
    """For CUDA: an event in the drafter's stream behind each optimizer step, read when the run is over.

    The device notes the time when it gets there, and nobody waits for it, so the trainer runs as it does
    without a clock. The events are recorded by torch's hook behind optimizer steps, in the thread and on
    the stream of the step.
    """

    def __init__(self, new_event: Callable[..., Event] = torch.cuda.Event) -> None:
        self._new_event = new_event
        self._events: list[Event] = []

    def __enter__(self) -> Self:
        self._hook = register_optimizer_step_post_hook(self._mark)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hook.remove()

    def _mark(self, optimizer: torch.optim.Optimizer, _args: object, _kwargs: object) -> None:
        device = optimizer.param_groups[0]["params"][0].device
        event = self._new_event(enable_timing=True)
        event.record(torch.cuda.current_stream(device) if device.type == "cuda" else None)
        self._events.append(event)

    def seconds_between(self, results: Sequence[WindowResult]) -> list[float]:
        """TrialError if a window took no step, for then nothing was recorded behind it."""
        if len(self._events) != len(results):
            raise TrialError(
                f"{len(results)} windows took {len(self._events)} optimizer steps, so not all of them can be "
                "timed: give every window samples with labels"
            )
        self._events[-1].synchronize()
        return [before.elapsed_time(after) / 1000 for before, after in pairwise(self._events)]
