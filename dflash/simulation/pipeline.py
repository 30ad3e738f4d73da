"""The pipeline as discrete events: the plan's own micro-batches through stages that only take time.

What is modelled is what ``dflash.pipeline`` does: slots are reserved in plan order, any free target takes the
next micro-batch, each drafter trains in plan order whatever the targets finish first and gives a slot back
when it has trained, and the drafters wait for each other at the end of every window.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dflash.simulation.events import Clock, Kind, Level, Machine, OwnDevices, SharedCores
from dflash.simulation.shapes import FloatArray

if TYPE_CHECKING:
    from simpy import Environment, Event, Store

Process = Generator["Event", Any, None]


@dataclass(frozen=True)
class Topology:
    """Who works, and how far ahead."""

    targets: int
    drafters: int
    accumulation: int
    depth: int
    """micro-batches that may wait for each drafter, as ``pipeline.depth``"""
    prefetch: int = 1
    barrier: bool = True
    """whether drafters wait for each other at the end of a window; False is what they never do, to compare"""
    cores: int | None = None
    """that all workers share; None where each has a device of its own"""

    @property
    def slots(self) -> int:
        """Micro-batches under way for each drafter, as the trainer has them."""
        return self.depth + -(-self.targets // self.drafters)

    @property
    def window_size(self) -> int:
        return self.accumulation * self.drafters


@dataclass(frozen=True)
class Seconds:
    """Undisturbed seconds of every micro-batch, float64[b], and of a window's end, in training order."""

    target: FloatArray
    drafter: FloatArray
    commit: float = 0.0
    """all-reduce and optimizer"""
    load: FloatArray | None = None
    transfer: FloatArray | None = None
    """the copy of features, during which the target can already go on"""
    slowdown: dict[Kind, float] = field(default_factory=dict)
    """of a kind of worker beside the others; 1 where it is left out"""


@dataclass(frozen=True)
class Timeline:
    """What came out. Seconds; everything but ``window_ends`` is counted from the end of the warm-up on."""

    window_ends: FloatArray
    """float64[w]: when each window was committed, those of the warm-up among them"""
    targets: list[dict[str, float]]
    """per target: busy, blocked (every slot is taken), starved"""
    drafters: list[dict[str, float]]
    """per drafter: busy, commit, barrier, starved"""
    ready_mean: float
    """micro-batches whose features wait for their drafter"""
    ready_peak: int
    in_flight_mean: float
    """slots taken"""


def simulate(topology: Topology, seconds: Seconds, warmup: int = 0) -> Timeline:
    """Run the pipeline over micro-batches; micro-batch j of a window is for drafter ``j % drafters``.

    Args:
        warmup: windows after which accounting starts anew.

    Raises:
        ValueError: the micro-batches are not whole windows.
    """
    batches = len(seconds.target)
    if batches % topology.window_size:
        raise ValueError(f"{batches} micro-batches are not whole windows of {topology.window_size}")
    return _Simulation(topology, seconds, warmup).run()


class _Simulation:
    def __init__(self, topology: Topology, seconds: Seconds, warmup: int) -> None:
        import simpy

        self.topology, self.seconds, self.warmup = topology, seconds, warmup
        self.environment: Environment = simpy.Environment()
        self.machine = _machine(self.environment, topology, seconds)
        self.batches = len(seconds.target)
        self.slots = [self._store(topology.slots) for _ in range(topology.drafters)]
        self.work = self._store(2 * topology.prefetch)
        self.loaded = self._store(2 * topology.targets)
        self.arrived: list[dict[int, float]] = [{} for _ in range(topology.drafters)]
        self.wanted: list[tuple[int, Event] | None] = [None] * topology.drafters
        self.at_barrier: list[Event] = []
        self.feed_waits, self.loading = False, 0
        self.slots_clock = Clock(self.environment)
        self.target_clocks = [Clock(self.environment, self._held_up) for _ in range(topology.targets)]
        self.drafter_clocks = [Clock(self.environment) for _ in range(topology.drafters)]
        self.ready, self.in_flight = Level(self.environment), Level(self.environment)
        self.window_ends: list[float] = []

    def _store(self, capacity: int) -> Store:
        import simpy

        return simpy.Store(self.environment, capacity)

    def run(self) -> Timeline:
        environment = self.environment
        environment.process(self._feed())
        if self.seconds.load is not None:
            for _ in range(self.topology.prefetch):
                environment.process(self._prefetch(self.seconds.load))
        for worker in range(self.topology.targets):
            environment.process(self._target(worker))
        drafters = [environment.process(self._drafter(rank)) for rank in range(self.topology.drafters)]
        environment.run(environment.all_of(drafters))
        return Timeline(
            window_ends=np.array(self.window_ends),
            targets=[clock.read() for clock in self.target_clocks],
            drafters=[clock.read() for clock in self.drafter_clocks],
            ready_mean=self.ready.mean(),
            ready_peak=self.ready.peak,
            in_flight_mean=self.in_flight.mean(),
        )

    def _drafter_of(self, batch: int) -> int:
        # Windows are whole multiples of the drafters, so the place in the window does not matter.
        return batch % self.topology.drafters

    def _held_up(self) -> float:
        """Seconds in which nothing was on its way to a target because those behind had every slot."""
        return self.slots_clock.read().get("taken", 0.0)

    def _on_the_way(self, feed_waits: bool, change: int) -> None:
        self.feed_waits, self.loading = feed_waits, self.loading + change
        self.slots_clock.switch("taken" if feed_waits and not self.loading else "free")

    def _feed(self) -> Process:
        outbox = self.work if self.seconds.load is not None else self.loaded
        for batch in range(self.batches):
            self._on_the_way(True, 0)
            yield self.slots[self._drafter_of(batch)].put(batch)
            self._on_the_way(False, 1)
            self.in_flight.change(1)
            yield outbox.put(batch)

    def _prefetch(self, load: FloatArray) -> Process:
        while True:
            batch = yield self.work.get()
            yield self.machine.work(float(load[batch]), "load")
            yield self.loaded.put(batch)

    def _target(self, worker: int) -> Process:
        clock, transfer = self.target_clocks[worker], self.seconds.transfer
        while True:
            clock.switch("starved")
            batch = yield self.loaded.get()
            clock.switch("busy")
            self._on_the_way(self.feed_waits, -1)
            yield self.machine.work(float(self.seconds.target[batch]), "target")
            if transfer is None:
                self._deliver(batch)
            else:
                copied = self.environment.timeout(float(transfer[batch]))
                copied.callbacks.append(lambda _, batch=batch: self._deliver(batch))

    def _deliver(self, batch: int) -> None:
        rank = self._drafter_of(batch)
        self.ready.change(1)
        self.arrived[rank][batch] = self.environment.now
        wanted = self.wanted[rank]
        if wanted is not None and wanted[0] == batch:
            self.wanted[rank] = None
            wanted[1].succeed()

    def _drafter(self, rank: int) -> Process:
        topology, clock = self.topology, self.drafter_clocks[rank]
        for batch in range(rank, self.batches, topology.drafters):
            clock.switch("starved")
            if batch not in self.arrived[rank]:
                event = self.environment.event()
                self.wanted[rank] = batch, event
                yield event
            del self.arrived[rank][batch]
            self.ready.change(-1)
            clock.switch("busy")
            yield self.machine.work(float(self.seconds.drafter[batch]), "drafter")
            if batch % topology.window_size + topology.drafters >= topology.window_size:
                clock.switch("barrier")
                if topology.barrier:
                    yield self._meet()
                clock.switch("commit")
                yield self.machine.work(self.seconds.commit, "drafter")
                if rank == 0:
                    self._committed()
            yield self.slots[rank].get()
            self.in_flight.change(-1)
        clock.switch("starved")  # as long as others go on

    def _meet(self) -> Event:
        mine = self.environment.event()
        self.at_barrier.append(mine)
        if len(self.at_barrier) == self.topology.drafters:
            for event in self.at_barrier:
                event.succeed()
            self.at_barrier.clear()
        return mine

    def _committed(self) -> None:
        self.window_ends.append(self.environment.now)
        if len(self.window_ends) == self.warmup:
            everything: list[Clock | Level] = [*self.target_clocks, *self.drafter_clocks]
            for one in (*everything, self.ready, self.in_flight):
                one.reset()


def _machine(environment: Environment, topology: Topology, seconds: Seconds) -> Machine:
    kinds: tuple[Kind, ...] = ("load", "target", "drafter")
    slowdown: dict[Kind, float] = {kind: seconds.slowdown.get(kind, 1.0) for kind in kinds}
    if topology.cores is None:
        return OwnDevices(environment, slowdown)
    return SharedCores(environment, topology.cores, slowdown)
