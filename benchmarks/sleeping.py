"""The real stages with a target and drafters that only sleep, and the same pipeline as a recursion."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dflash.data.collate import Batch
from dflash.models.anchors import AnchorSlots
from dflash.pipeline import Receiver, Sender, open_engine
from dflash.pipeline.stages import feed, run_drafter, run_target
from dflash.pipeline.work import Counts, LoadedBatch, TargetOutput, Work
from dflash.training.group import Alone, ChannelGroup, DistributedGroup, Group

Seconds = NDArray[np.float64]

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Shape:
    """A pipeline: N targets, M drafters, A micro-batches of each in a window, and slots of each."""

    targets: int
    drafters: int
    slots: int
    accumulation: int = 4

    @property
    def window(self) -> int:
        return self.accumulation * self.drafters


@dataclass(frozen=True)
class Durations:
    """Of every micro-batch, in training order."""

    target: Seconds
    drafter: Seconds


def durations(shape: Shape, windows: int, mean: float, variation: float, seed: int) -> Durations:
    """Log-normal ones, balanced: all targets together take what all drafters do."""
    rng = np.random.default_rng(seed)
    count, sigma = windows * shape.window, np.sqrt(np.log1p(variation**2))
    unit = [np.exp(rng.normal(-(sigma**2) / 2, sigma, count)) for _ in range(2)]
    return Durations(mean * shape.targets / shape.drafters * unit[0], mean * unit[1])


def foretell(shape: Shape, seconds: Durations) -> Seconds:
    """When each window ends, exactly: work starts as soon as its slot, a target, its features are there."""
    drafters = range(shape.drafters)
    idle, ready, at_barrier = [0.0] * shape.targets, [0.0 for _ in drafters], [0.0 for _ in drafters]
    freed: list[list[float]] = [[] for _ in drafters]
    dispatched, ends = 0.0, []
    for batch, (its_target, its_drafter) in enumerate(zip(seconds.target, seconds.drafter, strict=True)):
        turn, drafter = divmod(batch, shape.drafters)
        if turn >= shape.slots:
            dispatched = max(dispatched, freed[drafter][turn - shape.slots])
        target = idle.index(min(idle))
        idle[target] = max(dispatched, idle[target]) + its_target
        ready[drafter] = max(ready[drafter], idle[target]) + its_drafter
        if turn % shape.accumulation < shape.accumulation - 1:
            freed[drafter].append(ready[drafter])
            continue
        at_barrier[drafter] = ready[drafter]
        if drafter == shape.drafters - 1:
            ends.append(max(at_barrier))
            ready = [ends[-1] for _ in drafters]
            for times in freed:
                times.append(ends[-1])
    return np.array(ends)


def least_seconds(shape: Shape, seconds: Durations, first: int) -> float:
    """What the slower kind of stage takes by itself for the windows from ``first`` on, never waiting."""
    start = first * shape.window
    return float(
        max(
            seconds.target[start:].sum() / shape.targets,
            seconds.drafter[start:].sum() / shape.drafters,
        )
    )


def works(shape: Shape, windows: int) -> Iterator[Work]:
    """One row in each micro-batch, whose number is the micro-batch's."""
    for batch in range(windows * shape.window):
        turn, drafter = divmod(batch, shape.drafters)
        yield Work(
            id=batch,
            purpose="train",
            epoch=0,
            window=batch // shape.window,
            layout="padded",
            closes=turn % shape.accumulation == shape.accumulation - 1,
            rows_D=np.array([batch]),
            lengths_D=np.array([1]),
            drafter=drafter,
            turn=turn,
        )


def run_asleep(
    engine: str,
    shape: Shape,
    windows: int,
    seconds: Durations | None,
    each: Callable[[int], None] = lambda _: None,
) -> Seconds:
    """When each window ended, by the clock; with ``seconds`` None nobody sleeps. ``each`` sees them end."""
    with open_engine(engine, preload=("sleeping",)) as pipeline:
        drafters = range(shape.drafters)
        reserved = [pipeline.channel(f"slots-{rank}", items=shape.slots) for rank in drafters]
        work_tx, work_rx = pipeline.channel("work", items=2)
        batches_tx, batches_rx = pipeline.channel("batches", items=2 * shape.targets)
        features = [pipeline.channel(f"features-{rank}", items=shape.slots) for rank in drafters]
        results_tx, results_rx = pipeline.channel("results", items=8)
        slots = [pipeline.slots(shape.slots, nbytes=64) for _ in drafters]
        meeting = _Meeting(pipeline, shape.drafters)
        pipeline.start("feed", feed, works(shape, windows), [sender for sender, _ in reserved], work_tx)
        pipeline.start("load", load, work_rx, batches_tx)
        asleep: Callable[[], Any] = partial(SleepingTarget, None if seconds is None else seconds.target)
        for number in range(shape.targets):
            pipeline.start_apart(
                f"target-{number}",
                run_target,
                batches_rx.clone(),
                [sender.clone() for sender, _ in features],
                slots,
                asleep,
            )
        for rank in drafters:
            pipeline.start_apart(
                f"drafter-{rank}",
                run_drafter,
                features[rank][1],
                reserved[rank][1],
                results_tx.clone(),
                meeting.others[rank],
                slots[rank],
                partial(
                    SleepingStep,
                    seconds=None if seconds is None else seconds.drafter,
                    rank=rank,
                    size=shape.drafters,
                    port=meeting.port,
                ),
            )
        for end in (batches_rx, results_tx, *(sender for sender, _ in features)):
            end.close()
        ends: list[float] = []
        for end in pipeline.results(results_rx):
            each(len(ends))
            ends.append(end)
        return np.array(ends)


class _Meeting:
    """How drafters find each other, as in a training run."""

    def __init__(self, pipeline: Any, drafters: int) -> None:
        self.port: int | None = None
        self.others: list[Any] = [None] * drafters
        if drafters == 1:
            return
        if pipeline.has_processes:
            distributed: Any = torch.distributed
            self.store = distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
            self.port = self.store.port
            return
        ends = [pipeline.channel(f"gradients-{rank}", items=drafters) for rank in range(drafters)]
        self.others = [
            (inbox, [sender.clone() for other, (sender, _) in enumerate(ends) if other != rank])
            for rank, (_, inbox) in enumerate(ends)
        ]
        for sender, _ in ends:
            sender.close()


async def load(inbox: Receiver[Work], outbox: Sender[LoadedBatch]) -> None:
    """In place of reading a store: the number of the micro-batch is its only token."""
    nothing, none_NB = np.zeros(0, np.int64), np.zeros((0, 2), np.int64)
    slots = AnchorSlots(nothing, nothing, nothing, none_NB, none_NB.astype(bool))
    async for work in inbox:
        ids = np.array([[work.id]])
        batch = Batch("padded", ids, np.ones((1, 1), np.uint8), work.lengths_D, work.rows_D)
        await outbox.send(LoadedBatch(work, batch, slots, Counts(samples=1)))


@dataclass
class SleepingTarget:
    """Stands for ``dflash.models.target.Target``."""

    seconds: Seconds | None
    device: torch.device = _CPU

    def features(self, input_ids_RS: NDArray[np.int64], lengths_R: NDArray[np.int64]) -> Tensor:
        """One number for the one token."""
        if self.seconds is not None:
            time.sleep(self.seconds[input_ids_RS[0, 0]])
        return torch.ones(1, 1)


@dataclass
class SleepingStep:
    """Stands for ``dflash.training.step.DrafterStep``; drafters meet at the end of a window."""

    others: Any
    seconds: Seconds | None
    rank: int
    size: int
    port: int | None
    device: torch.device = _CPU
    group: Group = field(init=False)

    def __post_init__(self) -> None:
        self.group = Alone()
        if self.port is not None:
            self.group = DistributedGroup(self.rank, self.size, self.port, self.device)
        elif self.size > 1:
            self.group = ChannelGroup(self.rank, self.size, *self.others)

    async def __call__(self, output: TargetOutput) -> float | None:
        if self.seconds is not None:
            time.sleep(self.seconds[output.work.id])
        if not output.work.closes:
            return None
        await self.group.reduce([], None)
        return time.perf_counter() if self.rank == 0 else None

    def close(self) -> None:
        """Nothing is under way."""
