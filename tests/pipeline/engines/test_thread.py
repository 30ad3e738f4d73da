"""What only threads can do wrong."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from types import FrameType
from typing import Any

import pytest

from dflash.errors import StageError
from dflash.pipeline import Receiver, Sender, core, open_engine, operation, working_on


async def feed(outbox: Sender[int]) -> None:
    while True:
        await outbox.send(1)


async def hand_on(inbox: Receiver[int], outbox: Sender[int]) -> None:
    async for i in inbox:
        await outbox.send(i)


async def discard(inbox: Receiver[int]) -> None:
    async for _ in inbox:
        pass


def test_waiting_stages_use_no_processor_time() -> None:
    with open_engine("thread") as pipeline:
        tx, rx = pipeline.channel("0", items=1)
        for i in range(1, 9):
            next_tx, next_rx = pipeline.channel(str(i), items=1)
            pipeline.start(f"stage-{i}", hand_on, rx, next_tx)
            rx = next_rx
        pipeline.run(tx.send(1))
        assert pipeline.run(rx.receive()) == 1
        cpu, wall = time.process_time(), time.perf_counter()
        time.sleep(0.4)
        assert time.process_time() - cpu < 0.1 * (time.perf_counter() - wall)


def test_the_hook_runs_first_in_every_thread() -> None:
    local = threading.local()
    hooked, seen = set(), set()

    def hook() -> None:
        local.ready = True
        hooked.add(threading.get_ident())

    async def check(outbox: Sender[int]) -> None:
        assert local.ready
        seen.add(threading.get_ident())
        await outbox.send(1)

    with open_engine("thread", on_thread_start=hook) as pipeline:
        tx, rx = pipeline.channel("a", items=1)
        for i in range(3):
            pipeline.start(f"check-{i}", check, tx.clone())
        tx.close()
        assert sum(pipeline.results(rx)) == 3
    assert hooked == seen
    assert threading.get_ident() not in hooked


def test_a_failing_hook_is_a_failure_of_its_stage() -> None:
    def hook() -> None:
        raise RuntimeError("no such device")

    message = "^stage target-0 failed: RuntimeError: no such device$"
    with (
        pytest.raises(StageError, match=message),
        open_engine("thread", on_thread_start=hook) as pipeline,
    ):
        tx, rx = pipeline.channel("a", items=1)
        pipeline.start("target-0", hand_on, rx, tx)


def test_a_stage_that_hangs_is_named_with_all_stacks() -> None:
    release = threading.Event()

    async def hang(inbox: Receiver[int], outbox: Sender[int]) -> None:
        async for i in inbox:
            with working_on(f"micro-batch {i}"):
                with working_on("a row of it"):
                    pass
                release.wait()

    with pytest.raises(StageError) as error, open_engine("thread", stall_after=0.1) as pipeline:
        a_tx, a_rx = pipeline.channel("a", items=1)
        b_tx, b_rx = pipeline.channel("b", items=1)
        c_tx, c_rx = pipeline.channel("c", items=1)
        pipeline.start("hang", hang, a_rx, b_tx)
        pipeline.start("starved", hand_on, b_rx, c_tx)
        pipeline.run(a_tx.send(7))
        try:
            next(pipeline.results(c_rx))
        finally:
            release.set()
    message = str(error.value)
    assert message.startswith("stage hang has made no progress for ")
    assert " while working on micro-batch 7: it is in wait (" in message
    stacks = "\n".join(error.value.__notes__)
    assert "thread hang:" in stacks
    assert "in hang" in stacks
    assert "thread MainThread:" in stacks
    assert "thread starved:" in stacks


def test_stages_kept_waiting_are_not_called_hanging() -> None:
    with open_engine("thread", stall_after=0.2) as pipeline:
        a_tx, a_rx = pipeline.channel("a", items=1)
        b_tx, b_rx = pipeline.channel("b", items=1)
        pipeline.start("one", hand_on, a_rx, b_tx)
        time.sleep(0.6)  # the caller is slow, and that is its right
        pipeline.run(a_tx.send(1))
        assert pipeline.run(b_rx.receive()) == 1


def test_a_stage_that_never_waits_is_not_called_hanging() -> None:
    async def steady(outbox: Sender[int]) -> None:
        for i in range(6):
            time.sleep(0.1)
            await outbox.send(i)

    with open_engine("thread", stall_after=0.45) as pipeline:
        tx, rx = pipeline.channel("a", items=6)
        pipeline.start("steady", steady, tx)
        time.sleep(0.6)
        assert list(pipeline.results(rx)) == list(range(6))


def test_a_stage_that_does_not_end_is_left_with_a_warning() -> None:
    release = threading.Event()

    async def compute(outbox: Sender[int]) -> None:
        await outbox.send(1)
        release.wait()

    with (
        pytest.warns(RuntimeWarning, match=r"not ended within 0\.05 s: compute$"),
        pytest.raises(LookupError),
        open_engine("thread", grace=0.05) as pipeline,
    ):
        tx, rx = pipeline.channel("a", items=1)
        pipeline.start("compute", compute, tx)
        pipeline.run(rx.receive())
        raise LookupError
    (left,) = (thread for thread in threading.enumerate() if thread.name == "compute")
    assert left.daemon
    release.set()
    left.join()


# It may come between the making of a coroutine and its first step.
@pytest.mark.filterwarnings("ignore:coroutine 'Receiver.__anext__' was never awaited")
def test_an_interrupt_at_any_moment_ends_everything() -> None:
    threads = threading.active_count()

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    generator = random.Random(0)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(60):
            with pytest.raises(KeyboardInterrupt), open_engine("thread") as pipeline:
                a_tx, a_rx = pipeline.channel("a", items=generator.randint(1, 3))
                b_tx, b_rx = pipeline.channel("b", items=generator.randint(1, 3))
                pipeline.start("feed-0", feed, a_tx.clone())
                pipeline.start("feed-1", feed, a_tx)
                pipeline.start("one", hand_on, a_rx.clone(), b_tx.clone())
                pipeline.start("two", hand_on, a_rx, b_tx)
                signal.setitimer(signal.ITIMER_REAL, generator.uniform(1e-4, 5e-3))
                for _ in pipeline.results(b_rx):
                    pass
            assert threading.active_count() == threads
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_an_interrupt_at_any_line_of_a_channel_leaves_no_stage_waiting() -> None:
    """Line by line: the caller's receive lets a waiting send in, its send wakes a waiting receive."""

    def interrupted_at(step: int) -> bool:
        lines = 0

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal lines
            # Only what runs under the lock: unlike a trace, no signal comes between taking and guarding it.
            if event == "call":
                name = frame.f_code.co_name
                inner = name.startswith("_") or name == "finish"
                return trace if inner and frame.f_code.co_filename in sources else None
            lines += event == "line"
            if lines > step:
                raise KeyboardInterrupt
            return trace

        try:
            with open_engine("thread", grace=1.0) as pipeline:
                full_tx, full_rx = pipeline.channel("full", items=1)
                empty_tx, empty_rx = pipeline.channel("empty", items=1)
                pipeline.start("blocked", feed, full_tx)
                pipeline.start("starved", discard, empty_rx)
                while not (full_rx.statistics().waiting_senders and empty_tx.statistics().waiting_receivers):
                    time.sleep(1e-4)
                sys.settrace(trace)
                pipeline.run(full_rx.receive())
                pipeline.run(empty_tx.send(1))
                sys.settrace(before)
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False

    before = sys.gettrace()
    sources = {core.__file__, operation.__file__}
    steps = 0
    while interrupted_at(steps):
        steps += 1
    assert steps > 30


SCRIPT = """
    import sys, threading, time
    from dflash.pipeline import open_engine

    async def feed(outbox):
        while True:
            await outbox.send(0)

    async def wait(inbox):
        await inbox.receive()

    async def discard(inbox, outbox):
        async for _ in inbox:
            pass

    async def compute(outbox):
        time.sleep(3600)

    engine, where = sys.argv[1:]
    try:
        with open_engine(engine, grace=0.2) as pipeline:
            full_tx, full_rx = pipeline.channel("full", items=1)
            never_tx, never_rx = pipeline.channel("never", items=1)
            busy_tx, busy_rx = pipeline.channel("busy", items=1)
            pipeline.start("blocked", feed, full_tx)
            pipeline.start("starved", wait, never_rx.clone())
            pipeline.start("feed", feed, busy_tx)
            pipeline.start("discard", discard, busy_rx, never_tx.clone())
            if where == "computing":
                pipeline.start("compute", compute, never_tx.clone())
            print("ready", flush=True)
            if where == "outside":
                time.sleep(3600)
            for _ in pipeline.results(never_rx):
                pass
    except KeyboardInterrupt:
        print(sorted(thread.name for thread in threading.enumerate()))
        sys.exit(130)
"""


@pytest.mark.parametrize(
    ("engine", "where", "left"),
    [
        ("thread", "receiving", ["MainThread"]),
        ("thread", "outside", ["MainThread"]),
        ("thread", "computing", ["MainThread", "compute"]),
        ("inline", "receiving", ["MainThread"]),
    ],
)
def test_ctrl_c_ends_everything(engine: str, where: str, left: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), engine, where],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, f"{left}\n"), err
    assert ("left behind" in err and "compute" in err) == (where == "computing")
