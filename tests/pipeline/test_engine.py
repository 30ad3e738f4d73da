"""What every engine promises about the flow of items and about the end of a pipeline."""

from __future__ import annotations

import random
import sys
import threading
import time
import weakref
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.errors import ExitCode, StageError, UsageError
from dflash.pipeline import (
    BrokenChannel,
    ClosedChannel,
    ItemTooLarge,
    Pipeline,
    Receiver,
    Sender,
    in_order,
    open_engine,
)
from dflash.pipeline.channel import channel
from dflash.pipeline.engines import ENGINES


async def feed(outbox: Sender[int], n: int) -> None:
    async with outbox:
        for i in range(n):
            await outbox.send(i)


async def double(inbox: Receiver[int], outbox: Sender[int]) -> None:
    async with outbox:
        async for i in inbox:
            await outbox.send(2 * i)


async def sleepy(inbox: Receiver[int], outbox: Sender[int], seed: int) -> None:
    generator = random.Random(seed)
    async for i in inbox:
        if generator.random() < 0.2:
            time.sleep(generator.random() * 1e-3)
        await outbox.send(i)


async def endless(outbox: Sender[int]) -> None:
    i = 0
    while True:
        await outbox.send(i)
        i += 1


def line(pipeline: Pipeline, n: int, depth: int) -> Receiver[int]:
    """feed -> double -> the caller."""
    numbers_tx, numbers_rx = pipeline.channel("numbers", items=depth)
    doubles_tx, doubles_rx = pipeline.channel("doubles", items=depth)
    pipeline.start("feed", feed, numbers_tx, n)
    pipeline.start("double", double, numbers_rx, doubles_tx)
    return doubles_rx


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("beyond", [None, -1, 0, 1, 100])
def test_everything_arrives_in_order(engine: str, depth: int, beyond: int | None) -> None:
    n = 1 if beyond is None else depth + beyond
    with open_engine(engine) as pipeline:
        assert list(pipeline.results(line(pipeline, n, depth))) == [2 * i for i in range(n)]


def test_a_long_run_holds_few_items(engine: str) -> None:
    class Item:
        alive = most = 0

        def __init__(self) -> None:
            Item.alive += 1
            Item.most = max(Item.most, Item.alive)

        def __del__(self) -> None:
            Item.alive -= 1

    async def make(outbox: Sender[Item]) -> None:
        for _ in range(5000):
            await outbox.send(Item())

    async def hand_on(inbox: Receiver[Item], outbox: Sender[Item]) -> None:
        async for item in inbox:
            await outbox.send(item)

    with open_engine(engine) as pipeline:
        made_tx, made_rx = pipeline.channel("made", items=3)
        done_tx, done_rx = pipeline.channel("done", items=2)
        pipeline.start("make", make, made_tx)
        pipeline.start("hand_on", hand_on, made_rx, done_tx)
        assert sum(1 for _ in pipeline.results(done_rx)) == 5000
        # In the channels 3 and 2; one waits to be sent; hand_on and the caller hold one while they take the
        # next.
        assert Item.most <= 3 + 2 + 1 + 2 + 2
    assert Item.alive == 0


def test_items_live_no_longer_than_those_who_use_them(engine: str) -> None:
    class Item:
        pass

    async def produce(outbox: Sender[Item], replies: Receiver[str]) -> None:
        item = Item()
        refs.append(weakref.ref(item))
        sending = outbox.send(item)
        del item
        await sending
        await replies.receive()

    async def use(inbox: Receiver[Item], replies: Sender[str]) -> None:
        item = await inbox.receive()
        assert refs[0]() is item
        del item
        await replies.send("gone" if refs[0]() is None else "kept")

    refs: list[weakref.ref[Item]] = []
    with open_engine(engine) as pipeline:
        items_tx, items_rx = pipeline.channel("items", items=1)
        wait_tx, wait_rx = pipeline.channel("wait", items=1)
        replies_tx, replies_rx = pipeline.channel("replies", items=1)
        pipeline.start("produce", produce, items_tx, wait_rx)
        pipeline.start("use", use, items_rx, replies_tx)
        assert pipeline.run(replies_rx.receive()) == "gone"
        pipeline.run(wait_tx.send("on"))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    producers=st.integers(1, 3),
    workers=st.integers(1, 4),
    depth=st.integers(1, 4),
    n=st.integers(0, 25),
)
@pytest.mark.parametrize("engine", ENGINES)
def test_many_to_many_in_real_time(
    engine: str, seed: int, producers: int, workers: int, depth: int, n: int
) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        _many_to_many(engine, seed, producers, workers, depth, n)
    finally:
        sys.setswitchinterval(before)


def _many_to_many(engine: str, seed: int, producers: int, workers: int, depth: int, n: int) -> None:
    with open_engine(engine) as pipeline:
        todo_tx, todo_rx = pipeline.channel("todo", items=depth)
        done_tx, done_rx = pipeline.channel("done", items=depth)
        for i in range(producers):
            pipeline.start(f"feed-{i}", feed, todo_tx.clone(), n)
        for i in range(workers):
            pipeline.start(f"worker-{i}", sleepy, todo_rx.clone(), done_tx.clone(), seed + i)
        for end in (todo_tx, todo_rx, done_tx):
            end.close()
        got = Counter(pipeline.results(done_rx))
    assert got == Counter(dict.fromkeys(range(n), producers))
    for statistics in pipeline.snapshot().channels:
        assert statistics.peak_items <= depth
        assert statistics.total_items == producers * n


def test_order_does_not_depend_on_workers_depth_or_engine() -> None:
    def run(engine: str, workers: int, depth: int) -> list[int]:
        with open_engine(engine) as pipeline:
            todo_tx, todo_rx = pipeline.channel("todo", items=depth)
            done_tx, done_rx = pipeline.channel("done", items=depth)
            pipeline.start("feed", feed, todo_tx, 40)
            for i in range(workers):
                pipeline.start(f"worker-{i}", sleepy, todo_rx.clone(), done_tx.clone(), i)
            todo_rx.close()
            done_tx.close()
            return list(pipeline.results(in_order(done_rx, key=lambda i: i)))

    for engine in ENGINES:
        for workers, depth in [(1, 1), (3, 1), (3, 4)]:
            assert run(engine, workers, depth) == list(range(40))


@pytest.mark.parametrize("state", ["filling", "full", "drained"])
@pytest.mark.parametrize("leave", ["normally", "by an exception"])
def test_leaving_ends_the_stages_in_any_state(engine: str, state: str, leave: str) -> None:
    threads = threading.active_count()
    n, depth, taken = {"filling": (10**9, 1000, 0), "full": (10**9, 2, 3), "drained": (3, 2, 3)}[state]

    def visit() -> None:
        with open_engine(engine) as pipeline:
            results = pipeline.results(line(pipeline, n, depth))
            assert [next(results) for _ in range(taken)] == [0, 2, 4][:taken]
            if engine == "thread" and state == "full":
                while not pipeline.snapshot().channels[0].waiting_senders:
                    time.sleep(1e-3)
            if leave == "by an exception":
                raise LookupError("the caller's own")

    for _ in range(10):
        if leave == "normally":
            visit()
        else:
            with pytest.raises(LookupError, match="the caller's own"):
                visit()
        assert threading.active_count() == threads


def test_breaking_off_fifty_times_leaves_nothing(engine: str) -> None:
    threads = threading.active_count()
    for _ in range(50):
        with open_engine(engine) as pipeline:
            tx, rx = pipeline.channel("numbers", items=2)
            pipeline.start("endless", endless, tx)
            for i in pipeline.results(rx):
                if i == 3:
                    break
        assert threading.active_count() == threads


def test_leaving_waits_for_stages_that_have_work(engine: str) -> None:
    written = []

    async def write(inbox: Receiver[int]) -> None:
        async for i in inbox:
            time.sleep(1e-4)
            written.append(i)
        written.append(-1)

    with open_engine(engine) as pipeline:
        tx, rx = pipeline.channel("numbers", items=2)
        pipeline.start("feed", feed, tx.clone(), 20)  # the caller's own end stays open until it leaves
        pipeline.start("write", write, rx)
    assert written == [*range(20), -1]


def test_the_caller_can_send(engine: str) -> None:
    with open_engine(engine) as pipeline:
        tx, rx = pipeline.channel("numbers", items=2)
        doubled_tx, doubled_rx = pipeline.channel("doubled", items=2)
        pipeline.start("double", double, rx, doubled_tx)
        for i in range(10):
            pipeline.run(tx.send(i))
            assert pipeline.run(doubled_rx.receive()) == 2 * i
        tx.close()
        assert list(pipeline.results(doubled_rx)) == []


def test_ends_are_closed_when_their_stage_returns(engine: str) -> None:
    async def careless(outboxes: list[Sender[int]]) -> None:
        for outbox in outboxes:
            await outbox.send(1)

    with open_engine(engine) as pipeline:
        one_tx, one_rx = pipeline.channel("one", items=1)
        two_tx, two_rx = pipeline.channel("two", items=1)
        pipeline.start("careless", careless, [one_tx, two_tx])
        assert list(pipeline.results(one_rx)) == [1]
        assert list(pipeline.results(two_rx)) == [1]


def test_stages_see_the_errors_of_the_contract(engine: str) -> None:
    seen: dict[str, BaseException] = {}

    async def misuse(outbox: Sender[int], unheard: Sender[int], small: Sender[bytes]) -> None:
        for name, attempt in {
            "broken": unheard.send(1),
            "large": small.send(b"12345", nbytes=5),
            "unsized": small.send(b"12345"),
            "negative": small.send(b"", nbytes=-1),
        }.items():
            try:
                await attempt
            except Exception as error:
                seen[name] = error
        outbox.close()
        outbox.close()
        try:
            await outbox.send(1)
        except ClosedChannel as error:
            seen["closed"] = error

    with open_engine(engine) as pipeline:
        tx, rx = pipeline.channel("numbers", items=1)
        unheard_tx, unheard_rx = pipeline.channel("unheard", items=1)
        unheard_rx.close()
        small_tx, _ = pipeline.channel("small", items=1, bytes=4)
        pipeline.start("misuse", misuse, tx, unheard_tx, small_tx)
        assert list(pipeline.results(rx)) == []
    assert isinstance(seen["closed"], ClosedChannel)
    assert isinstance(seen["broken"], BrokenChannel)
    assert isinstance(seen["large"], ItemTooLarge)
    assert all(part in str(seen["large"]) for part in ("'small'", "5 bytes", "4 bytes"))
    assert isinstance(seen["unsized"], ValueError)
    assert isinstance(seen["negative"], ValueError)


def test_names_and_ends_belong_to_one_stage(engine: str) -> None:
    with open_engine(engine) as pipeline:
        tx, _rx = pipeline.channel("numbers", items=1)
        pipeline.start("feed", feed, tx, 0)
        with pytest.raises(ValueError, match="stage feed already"):
            pipeline.start("feed", feed, tx, 0)
        with pytest.raises(ValueError, match="'numbers' belongs to feed: clone it for feed-1"):
            pipeline.start("feed-1", feed, tx, 0)
        with pytest.raises(ValueError, match="channel 'numbers' already"):
            pipeline.channel("numbers", items=1)


def test_a_stage_may_await_nothing_but_channels(engine: str) -> None:
    class Foreign:
        def __await__(self):  # type: ignore[no-untyped-def]
            yield "a future of some other loop"

    async def stray() -> None:
        await Foreign()

    with (
        pytest.raises(StageError, match="stage stray failed: TypeError: a stage can await channel"),
        open_engine(engine) as pipeline,
    ):
        pipeline.start("stray", stray)


def test_an_unknown_engine_is_named_with_those_that_exist() -> None:
    with pytest.raises(UsageError, match="no engine 'ray'; choose one of inline, thread, process") as error:
        open_engine("ray")
    assert error.value.exit_code == ExitCode.USAGE


def test_a_channel_of_its_own_tells_its_statistics() -> None:
    tx, rx = channel("numbers", items=1)
    assert tx.statistics().items == rx.statistics().items == 0
    with pytest.raises(ClosedChannel, match="'numbers' cannot be cloned"):
        tx.close()
        tx.clone()
