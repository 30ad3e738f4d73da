"""Where the time of every stage goes, and how full every channel is.

A stage is always doing exactly one of five things, so its seconds add up to its wall time by construction:

- ``busy``: its own code; ``copy`` and ``barrier``: the parts of it that the stage marks with ``span``;
- ``starved``: waiting for an item; ``blocked``: waiting to hand one on. On the inline engine both include
  waiting for its turn.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from threading import Lock
from time import perf_counter_ns
from typing import Literal

from dflash.pipeline.core import ChannelStatistics

Activity = Literal["busy", "starved", "blocked", "copy", "barrier"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTelemetry:
    """Seconds of one stage, since its start or over an interval."""

    name: str
    wall: float = 0.0
    """The sum of the five that follow."""
    busy: float = 0.0
    starved: float = 0.0
    blocked: float = 0.0
    copy: float = 0.0
    barrier: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """A pipeline at one moment; ``later - earlier`` is what happened between two of them.

    Of plain values only: ``dataclasses.asdict`` of it is JSON.
    """

    seconds: float
    """Since the pipeline was opened, or the length of the interval."""
    stages: tuple[StageTelemetry, ...]
    """In the order in which they were started, the caller's own thread last."""
    channels: tuple[ChannelStatistics, ...]
    """In the order in which they were made."""

    @property
    def groups(self) -> tuple[StageTelemetry, ...]:
        """The means of the workers of each kind: ``target`` stands for ``target-0``, ``target-1``, ..."""
        workers: dict[str, list[StageTelemetry]] = {}
        for stage in self.stages:
            workers.setdefault(kind_of(stage.name), []).append(stage)
        return tuple(_mean(kind, members) for kind, members in workers.items())

    @property
    def bottleneck(self) -> str:
        """Whom the others wait for: the kind of worker that itself waits least for others.

        That is the largest mean of busy, copy and barrier seconds, the earlier one of equals: at a barrier
        workers of one kind wait for each other, and no other kind could help. Where one worker of the kind
        is busy for a quarter longer than the rest of it, that worker is named.
        """
        kind = max(self.groups, key=lambda group: group.busy + group.copy + group.barrier).name
        workers = [stage for stage in self.stages if kind_of(stage.name) == kind]
        busiest = max(workers, key=lambda stage: stage.busy)
        rest = [stage.busy for stage in workers if stage is not busiest]
        return busiest.name if rest and busiest.busy > 1.25 * sum(rest) / len(rest) else kind

    def __sub__(self, earlier: Telemetry) -> Telemetry:
        """The interval from ``earlier`` to this. What is a state, not a sum (items now, peaks), stays."""
        stages_then = {stage.name: stage for stage in earlier.stages}
        channels_then = {channel.name: channel for channel in earlier.channels}
        return Telemetry(
            seconds=self.seconds - earlier.seconds,
            stages=tuple(_stage_since(stages_then, stage) for stage in self.stages),
            channels=tuple(_channel_since(channels_then, channel) for channel in self.channels),
        )


def kind_of(name: str) -> str:
    """The name of a worker without its number."""
    return re.sub(r"-\d+$", "", name)


def _mean(kind: str, members: list[StageTelemetry]) -> StageTelemetry:
    seconds = [field.name for field in fields(StageTelemetry) if field.name != "name"]
    return StageTelemetry(
        name=kind,
        **{name: sum(getattr(one, name) for one in members) / len(members) for name in seconds},
    )


def _stage_since(then: Mapping[str, StageTelemetry], now: StageTelemetry) -> StageTelemetry:
    start = then.get(now.name, StageTelemetry(name=now.name))
    seconds = [field.name for field in fields(now) if field.name != "name"]
    return StageTelemetry(
        name=now.name, **{name: getattr(now, name) - getattr(start, name) for name in seconds}
    )


def _channel_since(then: Mapping[str, ChannelStatistics], now: ChannelStatistics) -> ChannelStatistics:
    start = then.get(now.name)
    if start is None:
        return now
    return replace(
        now,
        total_items=now.total_items - start.total_items,
        seconds_full=now.seconds_full - start.seconds_full,
        seconds_empty=now.seconds_empty - start.seconds_empty,
    )


class StageClock:
    """Adds up what one stage does. Its driver switches it; anyone may read it."""

    __slots__ = ("_activity", "_lock", "_name", "_ns", "_running", "_since_ns", "_started_ns")

    def __init__(self, name: str, activity: Activity) -> None:
        self._name = name
        self._activity: Activity = activity
        self._lock = Lock()
        # Whole nanoseconds, because their sum is exact.
        self._ns: dict[Activity, int] = {"busy": 0, "starved": 0, "blocked": 0, "copy": 0, "barrier": 0}
        self._started_ns = self._since_ns = perf_counter_ns()
        self._running = True

    def switch(self, activity: Activity) -> Activity:
        """From now on the stage does ``activity``; returns what it did until now."""
        with self._lock:
            self._add()
            before, self._activity = self._activity, activity
            return before

    def move(self, activity: Activity, ns: int) -> None:
        """Count ``ns`` of the time that was ``busy`` as ``activity``: a worker tells only afterwards."""
        with self._lock:
            self._add()
            ns = min(ns, self._ns["busy"])
            self._ns["busy"] -= ns
            self._ns[activity] += ns

    def take(self, activity: Activity) -> int:
        """The nanoseconds of ``activity`` until now, which start again from zero."""
        with self._lock:
            self._add()
            ns, self._ns[activity] = self._ns[activity], 0
            return ns

    def stop(self) -> None:
        """The stage has ended."""
        with self._lock:
            self._add()
            self._running = False

    def read(self) -> StageTelemetry:
        """The seconds until now."""
        with self._lock:
            self._add()
            return StageTelemetry(
                name=self._name,
                wall=(self._since_ns - self._started_ns) / 1e9,
                **{activity: ns / 1e9 for activity, ns in self._ns.items()},
            )

    def _add(self) -> None:
        if self._running:
            now = perf_counter_ns()
            self._ns[self._activity] += now - self._since_ns
            self._since_ns = now
