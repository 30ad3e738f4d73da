"""What every engine promises, as checks for an engine's own tests.

    @pytest.mark.parametrize("check", ENGINE_CHECKS, ids=lambda check: check.__name__)
    def test_engine(check):
        check(lambda **settings: open_engine("thread", **settings))

Each check drives real stages, started apart: an engine that has processes runs them in processes. The stages
are functions of this module, so that they can be found by name in another process.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial

import torch

from dflash.errors import DflashError, ExitCode, StageError, UsageError
from dflash.pipeline import (
    BrokenChannel,
    ClosedChannel,
    EndOfChannel,
    ItemTooLarge,
    Pipeline,
    Receiver,
    Sender,
)
from dflash.pipeline.ordering import in_order
from dflash.pipeline.slots import Filled, Slots
from dflash.pipeline.stage import span, working_on

OpenEngine = Callable[..., AbstractContextManager[Pipeline]]
"""Opens the engine under test; takes ``grace`` and ``stall_after``, in seconds."""


async def count(outbox: Sender[int], up_to: int) -> None:
    """Send 0, 1, ..."""
    for number in range(up_to):
        await outbox.send(number)


async def hand_on(inbox: Receiver[int], outbox: Sender[int], seed: int = 0, longest: float = 0.0) -> None:
    """Hand items on, each after a random time."""
    times = random.Random(seed)
    async for number in inbox:
        time.sleep(times.uniform(0, longest))
        await outbox.send(number)


async def put_in_order(inbox: Receiver[int], outbox: Sender[int]) -> None:
    """Hand items on by their value."""
    async for number in in_order(inbox, key=lambda number: number):
        await outbox.send(number)


async def fail_at(inbox: Receiver[int], outbox: Sender[int], number: int, error: Exception) -> None:
    """Hand items on, and raise ``error`` at one of them."""
    async for item in inbox:
        with working_on(f"item {item}"):
            if item == number:
                raise error
        await outbox.send(item)


async def hang_at(inbox: Receiver[int], outbox: Sender[int], number: int) -> None:
    """Hand items on, and fall silent at one of them."""
    async for item in inbox:
        with working_on(f"item {item}"):
            if item == number:
                time.sleep(60.0)
        await outbox.send(item)


async def mark_time(inbox: Receiver[int], outbox: Sender[int]) -> None:
    """Copy for 10 ms, then work for 20 ms, per item."""
    async for number in inbox:
        with span("copy"):
            time.sleep(0.01)
        time.sleep(0.02)
        await outbox.send(number)


async def fill_slots(inbox: Receiver[int], outbox: Sender[Filled], slots: Slots) -> None:
    """Put a tensor that holds the number into each slot."""
    async for number in inbox:
        await outbox.send(slots.fill(number, torch.full((3, number % 4), float(number), dtype=torch.float64)))


async def read_slots(inbox: Receiver[Filled], outbox: Sender[float], slots: Slots) -> None:
    """Send the sum of each slot."""
    async for filled in inbox:
        await outbox.send(float(slots.read(filled, torch.device("cpu")).sum()))


async def try_the_contract(
    closed: Sender[int], broken: Sender[int], over: Receiver[int], narrow: Sender[int], outbox: Sender[str]
) -> None:
    """Do what channels refuse, and send the names of the refusals."""
    closed.close()
    for attempt in (
        partial(closed.send, 1),
        partial(broken.send, 1),
        over.receive,
        partial(narrow.send, 1, nbytes=11),
    ):
        try:
            await attempt()
        except (ClosedChannel, BrokenChannel, EndOfChannel, ItemTooLarge) as refusal:
            await outbox.send(type(refusal).__name__)


async def send_through_clones(outbox: Sender[int]) -> None:
    """Send 0, 1, 2 through ends that close one after the other, some of them twice."""
    clones = [outbox, outbox.clone(), outbox.clone()]
    for number, clone in enumerate(clones):
        await clone.send(number)
        clone.close()
        clone.close()


async def wait_for_ever(inbox: Receiver[int]) -> None:
    """Take whatever comes."""
    async for _ in inbox:
        pass


def everything_arrives_in_order(open_engine: OpenEngine) -> None:
    """One worker keeps the order; several lose nothing and double nothing; resequencing restores it."""
    with open_engine() as pipeline:
        numbers_tx, numbers_rx = pipeline.channel("numbers", items=3)
        mixed_tx, mixed_rx = pipeline.channel("mixed", items=2)
        sorted_tx, sorted_rx = pipeline.channel("sorted", items=1)
        pipeline.start("count", count, numbers_tx, 60)
        for worker in range(3):
            pipeline.start_apart(
                f"worker-{worker}", hand_on, numbers_rx.clone(), mixed_tx.clone(), worker, 0.002
            )
        pipeline.start_apart("order", put_in_order, mixed_rx, sorted_tx)
        numbers_rx.close()
        mixed_tx.close()
        _same(list(pipeline.results(sorted_rx)), list(range(60)))


def channels_refuse_the_same_everywhere(open_engine: OpenEngine) -> None:
    """A stage that is apart meets the errors of the contract."""
    with open_engine() as pipeline:
        closed_tx, _closed = pipeline.channel("closed", items=1)
        broken_tx, broken_rx = pipeline.channel("broken", items=1)
        over_tx, over_rx = pipeline.channel("over", items=1)
        narrow_tx, _narrow = pipeline.channel("narrow", items=1, bytes=10)
        names_tx, names_rx = pipeline.channel("names", items=9)
        broken_rx.close()
        over_tx.close()
        pipeline.start_apart("try", try_the_contract, closed_tx, broken_tx, over_rx, narrow_tx, names_tx)
        _same(
            list(pipeline.results(names_rx)),
            ["ClosedChannel", "BrokenChannel", "EndOfChannel", "ItemTooLarge"],
        )


def the_last_clone_ends_the_stream(open_engine: OpenEngine) -> None:
    """Wherever a stage clones its ends; closing one twice closes no other."""
    with open_engine() as pipeline:
        numbers_tx, numbers_rx = pipeline.channel("numbers", items=1)
        pipeline.start_apart("clone", send_through_clones, numbers_tx)
        _same(list(pipeline.results(numbers_rx)), [0, 1, 2])


def the_first_failure_is_the_cause(open_engine: OpenEngine) -> None:
    """It is raised with stage and item, and keeps its exit code; everyone else ends."""
    for error, text, code in (
        (ValueError("no such thing"), "ValueError: no such thing", ExitCode.TRIAL_FAILED),
        (UsageError("a wrong setting"), "a wrong setting", ExitCode.USAGE),
    ):
        raised = _failure_of(open_engine, partial(_failing, error=error))
        _same(str(raised), f"stage fail failed while working on item 3: {text}")
        _same(raised.exit_code, code)
        _same(type(raised.__cause__), type(error))


def a_silent_stage_is_named(open_engine: OpenEngine) -> None:
    """With what it worked on; nobody waits for it longer than the grace time."""
    began = time.perf_counter()
    raised = _failure_of(open_engine, _hanging, stall_after=0.5, grace=0.5)
    if "hang" not in str(raised) or "item 3" not in str(raised):
        raise DflashError(f"the message does not name the stage and its item: {raised}")
    if time.perf_counter() - began > 30:
        raise DflashError("a stage that hangs was waited for")


def a_deadlock_is_named(open_engine: OpenEngine) -> None:
    """Everyone waits: that is said at once."""
    raised = _failure_of(open_engine, _deadlocked)
    if "deadlock" not in str(raised):
        raise DflashError(f"expected a deadlock, not: {raised}")


def time_adds_up(open_engine: OpenEngine) -> None:
    """The five activities sum to the wall time, and a span is counted as what it says."""
    with open_engine() as pipeline:
        numbers_tx, numbers_rx = pipeline.channel("numbers", items=1)
        out_tx, out_rx = pipeline.channel("out", items=1)
        pipeline.start("count", count, numbers_tx, 10)
        pipeline.start_apart("mark", mark_time, numbers_rx, out_tx)
        _same(len(list(pipeline.results(out_rx))), 10)
        telemetry = pipeline.snapshot()
    for stage in telemetry.stages:
        parts = stage.busy + stage.starved + stage.blocked + stage.copy + stage.barrier
        if abs(parts - stage.wall) > 1e-6:
            raise DflashError(f"{stage.name}: {parts} s of activities, {stage.wall} s of wall time")
    mark = next(stage for stage in telemetry.stages if stage.name == "mark")
    if mark.copy < 0.099 or mark.busy < 0.199:
        raise DflashError(f"0.1 s were copied and 0.2 s worked, the telemetry says {mark}")


def slots_carry_tensors(open_engine: OpenEngine) -> None:
    """What is put into a slot is read from it, however often it is reused, empty tensors included."""
    with open_engine() as pipeline:
        slots = pipeline.slots(3, nbytes=3 * 3 * 8)
        # The credit that keeps a slot from being filled before it was read: at most three are under way.
        numbers_tx, numbers_rx = pipeline.channel("numbers", items=1)
        filled_tx, filled_rx = pipeline.channel("filled", items=1)
        sums_tx, sums_rx = pipeline.channel("sums", items=1)
        pipeline.start("count", count, numbers_tx, 40)
        pipeline.start_apart("fill", fill_slots, numbers_rx, filled_tx, slots)
        pipeline.start_apart("read", read_slots, filled_rx, sums_tx, slots)
        _same(list(pipeline.results(sums_rx)), [3.0 * (number % 4) * number for number in range(40)])


def leaving_ends_everyone(open_engine: OpenEngine) -> None:
    """Breaking off leaves no stage running, whatever they do."""
    for taken in (0, 1, 5):
        with open_engine() as pipeline:
            numbers_tx, numbers_rx = pipeline.channel("numbers", items=1)
            out_tx, out_rx = pipeline.channel("out", items=1)
            pipeline.start("count", count, numbers_tx, 10**9)
            pipeline.start_apart("hand on", hand_on, numbers_rx, out_tx)
            results = pipeline.results(out_rx)
            _same([next(results) for _ in range(taken)], list(range(taken)))
        _same(len(_children()), 0)


ENGINE_CHECKS: Sequence[Callable[[OpenEngine], None]] = (
    everything_arrives_in_order,
    channels_refuse_the_same_everywhere,
    the_last_clone_ends_the_stream,
    the_first_failure_is_the_cause,
    a_silent_stage_is_named,
    a_deadlock_is_named,
    time_adds_up,
    slots_carry_tensors,
    leaving_ends_everyone,
)


def _failing(pipeline: Pipeline, error: Exception) -> None:
    numbers_tx, numbers_rx = pipeline.channel("numbers", items=1)
    out_tx, out_rx = pipeline.channel("out", items=1)
    pipeline.start("count", count, numbers_tx, 10)
    pipeline.start_apart("fail", fail_at, numbers_rx, out_tx, 3, error)
    list(pipeline.results(out_rx))


def _hanging(pipeline: Pipeline) -> None:
    numbers_tx, numbers_rx = pipeline.channel("numbers", items=1)
    out_tx, out_rx = pipeline.channel("out", items=1)
    pipeline.start("count", count, numbers_tx, 10)
    pipeline.start_apart("hang", hang_at, numbers_rx, out_tx, 3)
    list(pipeline.results(out_rx))


def _deadlocked(pipeline: Pipeline) -> None:
    to_tx, to_rx = pipeline.channel("to", items=1)
    _fro_tx, fro_rx = pipeline.channel("fro", items=1)
    pipeline.start_apart("wait", wait_for_ever, to_rx)
    pipeline.run(fro_rx.receive())
    to_tx.close()


def _failure_of(open_engine: OpenEngine, use: Callable[[Pipeline], None], **settings: float) -> StageError:
    try:
        with open_engine(**settings) as pipeline:
            use(pipeline)
    except StageError as error:
        return error
    raise DflashError("a failure of a stage was not raised")


def _children() -> list[int]:
    """Processes whose parent is this one and that are workers of an engine."""
    import multiprocessing

    return [process.pid or 0 for process in multiprocessing.active_children()]


def _same(found: object, expected: object) -> None:
    if found != expected:
        raise DflashError(f"expected {expected!r}, found {found!r} (process {os.getpid()})")
