"""What the stages run on, as simpy events: a device each, or the cores of one machine shared by all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from simpy import Environment, Event

Kind = Literal["load", "target", "drafter"]

_EPSILON = 1e-9
"""seconds of work below which a job is done; sums of floats never reach zero"""


class Machine(Protocol):
    """Turns seconds of work into an event."""

    def work(self, seconds: float, kind: Kind) -> Event:
        """Happens when ``seconds`` of undisturbed work have been done."""
        ...


class OwnDevices:
    """Every worker has a device of its own, always busy beside the others'."""

    def __init__(self, environment: Environment, slowdown: dict[Kind, float]) -> None:
        self._environment, self._slowdown = environment, slowdown

    def work(self, seconds: float, kind: Kind) -> Event:
        return self._environment.timeout(seconds * self._slowdown[kind])


class SharedCores:
    """Single-threaded workers share a machine's cores evenly (processor sharing).

    With n busy workers on C cores each runs at ``min(1, C / n)``, and a kind that is slowed down by ``f``
    beside one other worker by another ``1 + (f - 1) * (min(n, C) - 1)``: as many disturb each other as run at
    once.
    """

    def __init__(self, environment: Environment, cores: int, slowdown: dict[Kind, float]) -> None:
        self._environment, self._cores, self._slowdown = environment, cores, slowdown
        self._jobs: list[_Job] = []
        self._since = 0.0
        self._version = 0

    def work(self, seconds: float, kind: Kind) -> Event:
        done = self._environment.event()
        self._advance()
        self._jobs.append(_Job(seconds, kind, done))
        self._wait()
        return done

    def _rate(self, kind: Kind) -> float:
        busy = len(self._jobs)
        at_once = min(busy, self._cores)
        return at_once / busy / (1 + (self._slowdown[kind] - 1) * (at_once - 1))

    def _advance(self) -> None:
        elapsed = self._environment.now - self._since
        self._since = self._environment.now
        for job in self._jobs:
            job.left -= elapsed * self._rate(job.kind)

    def _wait(self) -> None:
        """For the job that is done first as things are; whatever changes them makes this wait stale."""
        self._version += 1
        if self._jobs:
            soonest = max(0.0, min(job.left / self._rate(job.kind) for job in self._jobs))
            timeout = self._environment.timeout(soonest)
            _then(timeout, self._finish, self._version)

    def _finish(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        done = [job for job in self._jobs if job.left <= _EPSILON]
        self._jobs = [job for job in self._jobs if job.left > _EPSILON]
        for job in done:
            job.event.succeed()
        self._wait()


class _Job:
    __slots__ = ("event", "kind", "left")

    def __init__(self, seconds: float, kind: Kind, event: Event) -> None:
        self.left, self.kind, self.event = seconds, kind, event


def _then(event: Event, action: Callable[..., None], *arguments: Any) -> None:
    assert event.callbacks is not None  # it has not happened yet
    event.callbacks.append(lambda _: action(*arguments))


class Clock:
    """Where one worker's time goes; its seconds add up to the time since it was last reset.

    While a worker waits for input, the time in which those behind held it up is ``blocked`` and the rest is
    ``starved``; ``held_up`` gives the seconds until now in which they would have.
    """

    def __init__(self, environment: Environment, held_up: Callable[[], float] = lambda: 0.0) -> None:
        self._environment, self._held_up = environment, held_up
        self.seconds: dict[str, float] = {}
        self._activity = "starved"
        self._mark()

    def _mark(self) -> None:
        self._since, self._held_up_then = self._environment.now, self._held_up()

    def switch(self, activity: str) -> None:
        """From now on."""
        self.read()
        self._activity = activity

    def read(self) -> dict[str, float]:
        """Seconds by activity until now."""
        elapsed = self._environment.now - self._since
        if self._activity == "starved":
            blocked = min(elapsed, self._held_up() - self._held_up_then)
            self.seconds["blocked"] = self.seconds.get("blocked", 0.0) + blocked
            elapsed -= blocked
        self.seconds[self._activity] = self.seconds.get(self._activity, 0.0) + elapsed
        self._mark()
        return self.seconds

    def reset(self) -> None:
        """Forget what was."""
        self.read()
        self.seconds = {}


class Level:
    """How many there are of something, over time."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.now = 0
        self.reset()

    def reset(self) -> None:
        """Forget what was."""
        self._start = self._since = self._environment.now
        self._area, self.peak = 0.0, self.now

    def change(self, by: int) -> None:
        """More, or fewer."""
        self._area += self.now * (self._environment.now - self._since)
        self._since = self._environment.now
        self.now += by
        self.peak = max(self.peak, self.now)

    def mean(self) -> float:
        """Since the last reset."""
        self.change(0)
        elapsed = self._environment.now - self._start
        return self._area / elapsed if elapsed else 0.0
