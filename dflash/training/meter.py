"""What happened to a run between two moments: its windows and tokens, and where every stage's time went."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Self

from dflash.errors import UsageError
from dflash.pipeline import Telemetry
from dflash.pipeline.work import Counts
from dflash.training.step import Result, WindowResult

_START = Telemetry(seconds=0.0, stages=(), channels=())


@dataclass(frozen=True)
class Every:
    """When an interval is over: at the first window that is committed after so many seconds, or windows."""

    number: float
    unit: Literal["s", "w"]

    @classmethod
    def parse(cls, text: str) -> Self:
        """From text such as ``10s`` or ``50w``; UsageError if it is not like that."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)s|(\d+)w", text.strip())
        number = float(found[1] or found[2]) if found else 0.0
        if not found or not number:
            raise UsageError(f"an interval of {text!r}: write seconds or windows, e.g. 10s or 50w")
        return cls(number, "s" if found[1] else "w")


@dataclass(frozen=True)
class Interval:
    """From one committed window to another; the first one begins when the pipeline is opened."""

    until: float
    """seconds from the opening of the pipeline to the end"""
    done: int
    """windows of the run that were trained at the end"""
    windows: int
    """committed within"""
    counts: Counts
    """of those windows"""
    loss: float | None
    """sum of weighted losses / sum of weights, over those windows; None without any weight"""
    telemetry: Telemetry

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.telemetry.seconds

    @property
    def padding_efficiency(self) -> float | None:
        """Real / padded tokens; None without any."""
        return self.counts.real_tokens / self.counts.padded_tokens if self.counts.padded_tokens else None


class Meter:
    """Cuts a run into intervals. The windows of all of them, and their seconds, add up to the whole."""

    def __init__(self, source: Callable[[], Telemetry], every: Every, first: int = 0) -> None:
        """``source`` tells where the time went until now; ``first`` is the number of the first window."""
        self._source = source
        self._every = every
        self._whole, self._part = _Tally(_START), _Tally(_START)
        self._done = first

    def add(self, result: Result) -> Interval | None:
        """Count a result; the interval that it ends, if it does."""
        if not isinstance(result, WindowResult):
            return None
        self._done = result.window + 1
        self._whole.add(result)
        self._part.add(result)
        now = self._source()
        length = now.seconds - self._part.since.seconds if self._every.unit == "s" else self._part.windows
        if length < self._every.number:
            return None
        interval = self._part.interval(now, self._done)
        self._part = _Tally(now)
        return interval

    def rest(self) -> Interval | None:
        """The interval that has begun last, if a window was committed in it."""
        return self._part.interval(self._source(), self._done) if self._part.windows else None

    def whole(self) -> Interval:
        """The run until now."""
        return self._whole.interval(self._source(), self._done)


class _Tally:
    def __init__(self, since: Telemetry) -> None:
        self.since = since
        self.windows = 0
        self._counts = Counts()
        self._loss = self._weight = 0.0

    def add(self, window: WindowResult) -> None:
        self.windows += 1
        self._counts += window.counts
        if window.loss is not None:
            self._loss += window.loss * window.weight
            self._weight += window.weight

    def interval(self, now: Telemetry, done: int) -> Interval:
        return Interval(
            until=now.seconds,
            done=done,
            windows=self.windows,
            counts=self._counts,
            loss=self._loss / self._weight if self._weight else None,
            telemetry=now - self.since,
        )
