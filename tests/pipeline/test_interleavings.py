"""Every order in which stages can take turns, all of them where they can be counted, else drawn at random."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.pipeline import ChannelStatistics, EndOfChannel, Receiver, Sender
from dflash.pipeline.engines.inline import InlinePipeline

Item = tuple[int, int]
Choose = Callable[[int], int]


async def produce(outbox: Sender[Item], producer: int, sizes: list[int]) -> None:
    for i, nbytes in enumerate(sizes):
        await outbox.send((producer, i), nbytes=nbytes)


async def consume(inbox: Receiver[Item], taken: list[Item], ends: list[str]) -> None:
    taken.extend([item async for item in inbox])
    ends.append("end")
    try:
        await inbox.receive()
    except EndOfChannel:
        ends.append("still the end")


def play(
    choose: Choose, sizes: list[list[int]], consumers: int, items: int, bytes: int
) -> tuple[list[list[Item]], list[str], ChannelStatistics]:
    taken: list[list[Item]] = [[] for _ in range(consumers)]
    ends: list[str] = []
    with InlinePipeline(choose=choose) as pipeline:
        tx, rx = pipeline.channel("c", items=items, bytes=bytes)
        for i, of_one in enumerate(sizes):
            pipeline.start(f"producer-{i}", produce, tx.clone(), i, of_one)
        for i in range(consumers):
            pipeline.start(f"consumer-{i}", consume, rx.clone(), taken[i], ends)
    return taken, ends, pipeline.snapshot().channels[0]


def check(
    sizes: list[list[int]], consumers: int, items: int, bytes: int, choose: Choose
) -> tuple[tuple[Item, ...], ...]:
    taken, ends, statistics = play(choose, sizes, consumers, items, bytes)
    everything = Counter((p, i) for p, of_one in enumerate(sizes) for i in range(len(of_one)))
    assert Counter(item for of_one in taken for item in of_one) == everything
    for of_one in taken:
        for producer in range(len(sizes)):
            numbers = [i for p, i in of_one if p == producer]
            assert numbers == sorted(numbers)
    assert Counter(ends) == {"end": consumers, "still the end": consumers}
    assert statistics.peak_items <= items
    assert statistics.peak_bytes <= bytes
    assert statistics.total_items == everything.total()
    assert (statistics.items, statistics.bytes) == (0, 0)
    return tuple(tuple(of_one) for of_one in taken)


def schedules() -> Iterator[Choose]:
    """Choosers that together make every sequence of choices, each once: depth first."""
    prefix: list[int] = []
    while True:
        made: list[tuple[int, int]] = []

        def choose(n: int, prefix: list[int] = prefix, made: list[tuple[int, int]] = made) -> int:
            choice = prefix[len(made)] if len(made) < len(prefix) else 0
            made.append((choice, n))
            return choice

        yield choose
        while made and made[-1][0] == made[-1][1] - 1:
            made.pop()
        if not made:
            return
        prefix = [choice for choice, _ in made[:-1]] + [made[-1][0] + 1]


def test_every_interleaving_of_two_producers_and_a_consumer() -> None:
    seen = Counter(check([[1, 1], [1]], 1, 1, 1, choose) for choose in schedules())
    merges = {((0, 0), (0, 1), (1, 0)), ((0, 0), (1, 0), (0, 1)), ((1, 0), (0, 0), (0, 1))}
    assert {order for (order,) in seen} == merges
    assert seen.total() > 500


def test_every_interleaving_of_a_producer_and_two_consumers() -> None:
    seen = Counter(check([[3, 3]], 2, 2, 5, choose) for choose in schedules())
    first, second = (0, 0), (0, 1)
    ways = {((first, second), ()), ((), (first, second)), ((first,), (second,)), ((second,), (first,))}
    assert set(seen) == ways
    assert seen.total() > 100


@settings(max_examples=400, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=4),
    consumers=st.integers(1, 4),
    items=st.integers(1, 5),
    bytes=st.integers(9, 30),
)
def test_random_interleavings(
    seed: int, sizes: list[list[int]], consumers: int, items: int, bytes: int
) -> None:
    generator = random.Random(seed)
    for _ in range(5):
        check(sizes, consumers, items, bytes, generator.randrange)


async def take(inbox: Receiver[Item], taken: list[Item], at_most: int) -> None:
    """Leave after so many items, with others waiting."""
    for _ in range(at_most):
        try:
            taken.append(await inbox.receive())
        except EndOfChannel:
            return


@settings(max_examples=400)
@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=4),
    wants=st.lists(st.integers(0, 8), min_size=1, max_size=4),
    items=st.integers(1, 5),
    bytes=st.integers(9, 30),
    leaves_after=st.none() | st.integers(0, 6),
)
def test_stages_and_callers_that_leave_early_lose_and_double_nothing_that_was_taken(
    seed: int, sizes: list[list[int]], wants: list[int], items: int, bytes: int, leaves_after: int | None
) -> None:
    """Consumers close after what they want; the caller, a consumer too, may abort everything."""
    for choose in [random.Random(seed + i).randrange for i in range(5)]:
        taken: list[list[Item]] = [[] for _ in (*wants, None)]
        with suppress(KeyError), InlinePipeline(choose=choose) as pipeline:
            tx, rx = pipeline.channel("c", items=items, bytes=bytes)
            for i, of_one in enumerate(sizes):
                pipeline.start(f"producer-{i}", produce, tx.clone(), i, of_one)
            for i, at_most in enumerate(wants):
                pipeline.start(f"consumer-{i}", take, rx.clone(), taken[i], at_most)
            tx.close()
            for item in pipeline.results(rx):
                taken[-1].append(item)
                if len(taken[-1]) == leaves_after:
                    raise KeyError
        found = Counter(item for of_one in taken for item in of_one)
        everything = Counter((p, i) for p, of_one in enumerate(sizes) for i in range(len(of_one)))
        assert found <= everything
        if leaves_after is None or len(taken[-1]) < leaves_after:
            assert found == everything
        assert all(len(of_one) <= at_most for of_one, at_most in zip(taken, wants, strict=False))
        for of_one in taken:
            assert all(
                [i for p, i in of_one if p == q] == sorted(i for p, i in of_one if p == q) for q in range(4)
            )
