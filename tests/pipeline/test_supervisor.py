"""What goes wrong in one stage ends all of them, and the caller hears of the first cause."""

from __future__ import annotations

import threading
import time
import traceback

import pytest

from dflash.errors import DflashError, ExitCode, NonFiniteError, StageError, UsageError
from dflash.pipeline import Aborted, Receiver, Sender, channel, open_engine, working_on
from dflash.pipeline.operation import Operation
from dflash.pipeline.stage import Stage
from dflash.pipeline.supervisor import Supervisor


async def feed(outbox: Sender[int]) -> None:
    i = 0
    while True:
        await outbox.send(i)
        i += 1


async def hand_on(inbox: Receiver[int], outbox: Sender[int]) -> None:
    async for i in inbox:
        await outbox.send(i)


async def take_one(inbox: Receiver[int]) -> None:
    await inbox.receive()


async def fail_at_17(inbox: Receiver[int], error: Exception) -> None:
    async for i in inbox:
        with working_on(f"micro-batch {i}"):
            if i == 17:
                raise error


def run_until_failure(engine: str, error: Exception) -> None:
    with open_engine(engine) as pipeline:
        tx, rx = pipeline.channel("numbers", items=2)
        pipeline.start("feed", feed, tx)
        pipeline.start("target-0", fail_at_17, rx, error)


def test_the_message_says_what_where_and_on_which_item(engine: str) -> None:
    cause = ValueError("row 3\n  has no tokens")
    with pytest.raises(StageError) as error:
        run_until_failure(engine, cause)
    assert str(error.value) == (
        "stage target-0 failed while working on micro-batch 17: ValueError: row 3 has no tokens"
    )
    assert error.value.__cause__ is cause
    assert error.value.exit_code == ExitCode.TRIAL_FAILED
    assert "in fail_at_17" in "".join(traceback.format_exception(cause))


@pytest.mark.parametrize("kind", [UsageError, NonFiniteError])
def test_our_own_errors_keep_their_exit_code(engine: str, kind: type[DflashError]) -> None:
    with pytest.raises(StageError) as error:
        run_until_failure(engine, kind("loss is NaN; lower the learning rate"))
    assert error.value.exit_code == kind.exit_code
    assert str(error.value).endswith("on micro-batch 17: loss is NaN; lower the learning rate")


def test_the_innermost_item_is_named(engine: str) -> None:
    async def nested() -> None:
        with working_on("window 2"):
            with working_on("micro-batch 4"):
                pass
            with working_on("micro-batch 5"):
                raise RuntimeError

    message = "^stage nested failed while working on micro-batch 5: RuntimeError$"
    with pytest.raises(StageError, match=message), open_engine(engine) as pipeline:
        pipeline.start("nested", nested)


def test_an_error_that_was_handled_is_not_blamed_on_its_item(engine: str) -> None:
    async def recovers() -> None:
        try:
            with working_on("micro-batch 4"):
                raise KeyError("row")
        except KeyError:
            pass
        raise RuntimeError("later")

    message = "^stage recovers failed: RuntimeError: later$"
    with pytest.raises(StageError, match=message), open_engine(engine) as pipeline:
        pipeline.start("recovers", recovers)


def test_results_raise_it_and_so_does_leaving(engine: str) -> None:
    with pytest.raises(StageError) as left, open_engine(engine) as pipeline:
        tx, rx = pipeline.channel("numbers", items=2)
        _never_tx, never_rx = pipeline.channel("never", items=1)
        pipeline.start("feed", feed, tx)
        pipeline.start("target-0", fail_at_17, rx, ValueError("no"))
        with pytest.raises(StageError) as heard:
            next(pipeline.results(never_rx))
        late_tx, _ = pipeline.channel("late", items=1)
        with pytest.raises(StageError) as again:  # a channel that is made after the end has ended too
            pipeline.run(late_tx.send(1))
    assert left.value is heard.value is again.value


@pytest.mark.parametrize("listen", [True, False])
def test_the_first_of_three_failures_wins(engine: str, listen: bool) -> None:
    async def first(inbox: Receiver[int], quiet: Sender[int]) -> None:
        await inbox.receive()
        raise ValueError("first")

    async def second(inbox: Receiver[int]) -> None:
        try:
            await inbox.receive()
        finally:
            raise ValueError("second")

    async def third(inbox: Receiver[int]) -> None:
        try:
            await inbox.receive()
        except Aborted as aborted:
            raise ValueError("third") from aborted

    message = "^stage first failed: ValueError: first$"
    with pytest.raises(StageError, match=message), open_engine(engine) as pipeline:
        quiet_tx, quiet_rx = pipeline.channel("quiet", items=1)
        start_tx, start_rx = pipeline.channel("start", items=1)
        pipeline.start("second", second, quiet_rx.clone())
        pipeline.start("third", third, quiet_rx.clone())
        pipeline.start("first", first, start_rx, quiet_tx)
        pipeline.run(start_tx.send(1))
        if listen:
            list(pipeline.results(quiet_rx))


def test_three_failures_at_once_are_one(engine: str) -> None:
    together = threading.Barrier(3)

    async def burst(number: int) -> None:
        if engine == "thread":
            together.wait()
        raise ValueError(f"number {number}")

    for _ in range(20):
        with pytest.raises(StageError) as error, open_engine(engine) as pipeline:
            for i in range(3):
                pipeline.start(f"burst-{i}", burst, i)
        number = int(str(error.value)[-1])
        assert str(error.value) == f"stage burst-{number} failed: ValueError: number {number}"
        assert str(error.value.__cause__) == f"number {number}"


def test_a_failure_ends_stages_that_handle_every_exception(engine: str) -> None:
    ended = []

    async def stubborn(inbox: Receiver[int]) -> None:
        try:
            while True:
                try:
                    await inbox.receive()
                except Exception:
                    continue
        finally:
            ended.append("stubborn")

    async def breaks(inbox: Receiver[int]) -> None:
        raise ValueError("no")

    with pytest.raises(StageError, match=r"^stage breaks failed"), open_engine(engine) as pipeline:
        _tx, rx = pipeline.channel("numbers", items=1)
        pipeline.start("stubborn", stubborn, rx.clone())
        pipeline.start("breaks", breaks, rx.clone())
        list(pipeline.results(rx))
    assert ended == ["stubborn"]


def test_a_consumer_that_stops_early_is_a_failure_of_its_feed(engine: str) -> None:
    message = r"^stage feed failed: BrokenChannel: no receiver is left on channel 'numbers'$"
    with pytest.raises(StageError, match=message), open_engine(engine) as pipeline:
        tx, rx = pipeline.channel("numbers", items=1)
        _done_tx, done_rx = pipeline.channel("done", items=1)
        pipeline.start("feed", feed, tx)
        pipeline.start("take_one", take_one, rx)
        next(pipeline.results(done_rx))


def test_the_callers_own_exception_is_not_replaced(engine: str) -> None:
    with pytest.raises(LookupError, match=r"^mine$"), open_engine(engine) as pipeline:
        tx, rx = pipeline.channel("numbers", items=1)
        pipeline.start("feed", feed, tx)
        next(pipeline.results(rx))
        raise LookupError("mine")


def test_a_deadlock_is_reported_with_who_waits_for_what(engine: str) -> None:
    with pytest.raises(StageError) as error, open_engine(engine) as pipeline:
        a_tx, a_rx = pipeline.channel("a", items=1)
        b_tx, b_rx = pipeline.channel("b", items=1)
        _results_tx, results_rx = pipeline.channel("results", items=1)
        pipeline.start("one", hand_on, a_rx, b_tx.clone())
        pipeline.start("two", hand_on, b_rx, a_tx)
        next(pipeline.results(results_rx))
    assert str(error.value) == (
        "deadlock, everyone waits: "
        "one waits to receive from 'a' (0 of 1 items; senders: two; receivers: one); "
        "two waits to receive from 'b' (0 of 1 items; senders: caller, one; receivers: two); "
        "caller waits to receive from 'results' (0 of 1 items; senders: caller; receivers: caller). "
        "Close the ends that you do not use, or add depth"
    )


def test_an_end_that_the_caller_forgot_is_a_deadlock_not_a_hang(engine: str) -> None:
    message = r"hand_on waits to receive from 'a' \(0 of 4 items; senders: caller;"
    with pytest.raises(StageError, match=message), open_engine(engine) as pipeline:
        a_tx, a_rx = pipeline.channel("a", items=4)
        b_tx, b_rx = pipeline.channel("b", items=4)
        pipeline.start("hand_on", hand_on, a_rx, b_tx)
        pipeline.run(a_tx.send(1))
        list(pipeline.results(b_rx))


def test_a_deadlock_while_leaving_is_reported(engine: str) -> None:
    async def hoard(outbox: Sender[int], inbox: Receiver[int]) -> None:
        await outbox.send(1)
        await outbox.send(2)

    message = r"deadlock, everyone waits: hoard waits to send to 'a'.*; caller waits to receive from 'stages"
    with pytest.raises(StageError, match=message), open_engine(engine) as pipeline:
        tx, rx = pipeline.channel("a", items=1)
        pipeline.start("hoard", hoard, tx, rx)


def test_a_stage_that_ends_can_be_the_last_that_was_not_waiting(engine: str) -> None:
    async def short() -> None:
        if engine == "thread":
            time.sleep(0.05)

    with pytest.raises(StageError, match=r"^deadlock"), open_engine(engine) as pipeline:
        _a_tx, a_rx = pipeline.channel("a", items=1)
        b_tx, b_rx = pipeline.channel("b", items=1)
        pipeline.start("hand_on", hand_on, a_rx, b_tx)
        pipeline.start("short", short)
        next(pipeline.results(b_rx))


def test_an_operation_that_ends_while_others_are_looked_at_is_not_a_deadlock() -> None:
    class DoneAtSecondLook(Operation):
        looks = 0

        @property
        def done(self) -> bool:
            self.looks += 1
            return self.looks > 1

        @done.setter
        def done(self, value: bool) -> None:
            pass

    _sender, receiver = channel("c", items=1)
    caller, stage = Stage("caller", "busy"), Stage("stage", "busy")
    supervisor = Supervisor(caller)
    supervisor.add_stage(stage)
    stage.wait(DoneAtSecondLook(receiver, sends=False))
    caller.wait(Operation(receiver, sends=False))
    supervisor.check_for_deadlock()
    assert supervisor.cause is None
    stage.wait(Operation(receiver, sends=False))
    supervisor.check_for_deadlock()
    assert isinstance(supervisor.cause, StageError)


def test_slowness_is_not_a_deadlock(engine: str) -> None:
    async def slow(outbox: Sender[int]) -> None:
        for i in range(5):
            time.sleep(0.02)
            await outbox.send(i)

    with open_engine(engine) as pipeline:
        a_tx, a_rx = pipeline.channel("a", items=1)
        b_tx, b_rx = pipeline.channel("b", items=1)
        pipeline.start("slow", slow, a_tx)
        pipeline.start("hand_on", hand_on, a_rx, b_tx)
        assert list(pipeline.results(b_rx)) == list(range(5))
