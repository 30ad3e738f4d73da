"""Everybody who is told of a run: the person in front of it, a telemetry file, observers from plugins."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dflash.errors import DflashError, PluginError
from dflash.pipeline import Telemetry
from dflash.plugin_manager import NamedObserver, PluginWarning
from dflash.training import events
from dflash.training.events import Event, Reason
from dflash.training.meter import Every, Interval, Meter
from dflash.training.progress import Progress
from dflash.training.step import EvaluationResult, Result, SaveResult, WindowResult
from dflash.training.telemetry_log import TelemetryLog

Listener = Callable[[Event], object]

_TEN_SECONDS = Every(10.0, "s")


@dataclass(frozen=True)
class Audience:
    """Who is to be told, beside the person."""

    every: Every = _TEN_SECONDS
    telemetry: Path | None = None
    observers: Sequence[NamedObserver] = ()


NOBODY = Audience()


class Watch:
    """A context manager around a run; the last thing that it tells is how the run ended.

    A listener that fails is warned of and told nothing more: no run ends because of who looks at it.

    Raises:
        UsageError: on entering, the telemetry file cannot be written, or an observer refuses.
    """

    def __init__(
        self,
        audience: Audience,
        progress: Progress,
        *,
        folder: Path,
        windows: int,
        first: int,
        manifest: dict[str, Any],
    ) -> None:
        self._audience = audience
        self._progress = progress
        self._start = events.run_start(folder, windows, first, manifest)
        self._first = first
        self._listeners: dict[str, Listener] = {}
        self._meter: Meter | None = None
        self._reason: Reason = "finished"
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack:
            if self._audience.telemetry is not None:
                log = self._stack.enter_context(TelemetryLog(self._audience.telemetry))
                self._listeners[f"the telemetry file {self._audience.telemetry}"] = log.tell
                self._tell(self._start)  # observers are not yet among them: they are opened with it
            for number, named in enumerate(self._audience.observers):
                self._listeners[f"observer {named.name} ({number})"] = self._opened(named)
            self._stack.enter_context(self._progress)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._stack:
            if error is not None:
                self._reason = "failed"
            if self._meter is not None and (rest := self._meter.rest()) is not None:
                self._tell(events.of_interval(rest))
            whole = None if self._meter is None else self._meter.whole()
            self._tell(events.run_end(self._reason, None if error is None else str(error), whole))

    def begins(self, telemetry: Callable[[], Telemetry]) -> None:
        """The pipeline runs; ``telemetry`` tells where its time went until now."""
        self._meter = Meter(telemetry, self._audience.every, self._first)
        self._progress.begins(telemetry)

    def result(self, result: Result) -> None:
        """The pipeline gave a result."""
        assert self._meter is not None
        self._tell(events.of_result(result))
        if isinstance(result, WindowResult):
            self._progress.window(result)
        elif isinstance(result, EvaluationResult):
            self._progress.evaluation(result)
        elif isinstance(result, SaveResult):
            self._progress.saved(result)
        interval = self._meter.add(result)
        if interval is not None:
            self._over(interval)

    def interrupted(self, drafter: Path | None) -> None:
        """Ctrl-C or SIGTERM ended it. ``drafter`` is where the weights of the last checkpoint are."""
        self._reason = "interrupted"
        self._progress.interrupted(drafter)

    def finished(self) -> None:
        """All windows are trained and the weights written."""
        self._progress.finished()

    def _over(self, interval: Interval) -> None:
        self._progress.interval(interval)
        self._tell(events.of_interval(interval))

    def _opened(self, named: NamedObserver) -> Listener:
        try:
            return named.observer.open(self._start)
        except DflashError:
            raise
        except Exception as error:  # whatever foreign code raises
            raise PluginError(
                f"observer {named.name} cannot begin: {type(error).__name__}: {error}; leave out --observe"
            ) from error

    def _tell(self, event: Event) -> None:
        for name, listener in tuple(self._listeners.items()):
            try:
                listener(event)
            except Exception as error:  # whatever foreign code raises, or a full disk
                del self._listeners[name]
                warnings.warn(
                    f"{name} failed at {event['type']} and is told nothing more: "
                    f"{type(error).__name__}: {error}",
                    PluginWarning,
                    stacklevel=2,
                )
