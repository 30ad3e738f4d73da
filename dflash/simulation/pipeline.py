"""The pipeline as discrete events: the plan's own micro-batches through stages that only take time.

What is modelled is what ``dflash.pipeline`` does: slots are reserved in plan order, any free target takes the
next micro-batch, each drafter trains in plan order whatever the targets finish first, and the drafters wait
for each other at the end of every window.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from dflash.simulation.shapes import FloatArray


@dataclass(frozen=True)
class Topology:
    """Who works, and how far ahead: ``depth`` slots for each drafter."""

    targets: int
    drafters: int
    accumulation: int
    depth: int


@dataclass(frozen=True)
class Timeline:
    """What came out. Seconds."""

    window_ends: list[float]
    """when each window was committed"""
    target_busy: list[float]
    """per target"""
    drafter_busy: list[float]
    """per drafter, without waiting"""
    barrier: list[float]
    """per drafter: waiting for the others at the ends of windows"""
    starved: list[float]
    """per drafter: waiting for features"""
    waiting_mean: float
    """mean number of micro-batches that were finished by a target and not yet taken by a drafter"""

    @property
    def seconds(self) -> float:
        """Until the last commit."""
        return self.window_ends[-1] if self.window_ends else 0.0


@dataclass
class _State:
    ready: list[dict[int, Any]]
    busy_targets: list[float]
    busy_drafters: list[float]
    barrier: list[float]
    starved: list[float]
    window_ends: list[float] = field(default_factory=list)
    waiting_area: float = 0.0


def simulate(
    topology: Topology,
    target_seconds: FloatArray,
    drafter_seconds: FloatArray,
    commit_seconds: float,
    transfer_seconds: FloatArray | None = None,
) -> Timeline:
    """Run the pipeline over micro-batches in training order.

    Args:
        target_seconds, drafter_seconds: float64[b], b a multiple of the window's size; micro-batch j of a
            window is for drafter ``j % drafters``.
        commit_seconds: all-reduce and optimizer at the end of a window.
        transfer_seconds: float64[b], the copy of features, during which the target can already go on.

    Raises:
        ValueError: b is no multiple of accumulation x drafters.
    """
    import simpy

    size = topology.accumulation * topology.drafters
    if len(target_seconds) % size:
        raise ValueError(f"{len(target_seconds)} micro-batches are not whole windows of {size}")
    windows = len(target_seconds) // size
    environment = simpy.Environment()
    slots = [simpy.Container(environment, topology.depth, topology.depth) for _ in range(topology.drafters)]
    queue = simpy.Store(environment, capacity=2 * topology.targets)
    arrived = [simpy.Store(environment) for _ in range(topology.drafters)]
    state = _State(
        ready=[{} for _ in range(topology.drafters)],
        busy_targets=[0.0] * topology.targets,
        busy_drafters=[0.0] * topology.drafters,
        barrier=[0.0] * topology.drafters,
        starved=[0.0] * topology.drafters,
    )
    at_barrier: list[Any] = []

    def feed() -> Generator[Any, Any, None]:
        for batch in range(len(target_seconds)):
            yield slots[batch % size % topology.drafters].get(1)
            yield queue.put(batch)

    def target(worker: int) -> Generator[Any, Any, None]:
        while True:
            batch = yield queue.get()
            seconds = float(target_seconds[batch])
            yield environment.timeout(seconds)
            state.busy_targets[worker] += seconds
            environment.process(deliver(batch))

    def deliver(batch: int) -> Generator[Any, Any, None]:
        if transfer_seconds is not None:
            yield environment.timeout(float(transfer_seconds[batch]))
        yield arrived[batch % size % topology.drafters].put((batch, environment.now))

    def drafter(rank: int) -> Generator[Any, Any, None]:
        early: dict[int, float] = {}
        for window in range(windows):
            for place in range(topology.accumulation):
                batch = window * size + place * topology.drafters + rank
                since = environment.now
                while batch not in early:
                    number, came = yield arrived[rank].get()
                    early[number] = came
                state.starved[rank] += environment.now - since
                state.waiting_area += environment.now - early.pop(batch)
                seconds = float(drafter_seconds[batch])
                yield environment.timeout(seconds)
                state.busy_drafters[rank] += seconds
                if place + 1 < topology.accumulation:
                    yield slots[rank].put(1)
            since = environment.now
            yield meet()
            state.barrier[rank] += environment.now - since
            yield environment.timeout(commit_seconds)
            state.busy_drafters[rank] += commit_seconds
            yield slots[rank].put(1)
            if rank == 0:
                state.window_ends.append(environment.now)

    def meet() -> Any:
        at_barrier.append(environment.event())
        mine = at_barrier[-1]
        if len(at_barrier) == topology.drafters:
            for event in at_barrier:
                event.succeed()
            at_barrier.clear()
        return mine

    environment.process(feed())
    for worker in range(topology.targets):
        environment.process(target(worker))
    drafters = [environment.process(drafter(rank)) for rank in range(topology.drafters)]
    environment.run(simpy.AllOf(environment, drafters))
    return Timeline(
        window_ends=state.window_ends,
        target_busy=state.busy_targets,
        drafter_busy=state.busy_drafters,
        barrier=state.barrier,
        starved=state.starved,
        waiting_mean=state.waiting_area / environment.now if environment.now else 0.0,
    )
