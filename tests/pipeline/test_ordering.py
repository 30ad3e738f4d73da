from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.pipeline import OutOfOrder, Sender, in_order
from dflash.pipeline.engines.inline import InlinePipeline


async def emit(outbox: Sender[int], numbers: list[int]) -> None:
    for number in numbers:
        await outbox.send(number)


def ordered(numbers: list[int]) -> list[int]:
    with InlinePipeline() as pipeline:
        tx, rx = pipeline.channel("numbers", items=1)
        pipeline.start("emit", emit, tx, numbers)
        return list(pipeline.results(in_order(rx, key=lambda number: number)))


@given(st.integers(0, 30).flatmap(lambda n: st.permutations(range(n))))
def test_any_arrival_gives_the_same_order(arrival: list[int]) -> None:
    assert ordered(arrival) == sorted(arrival)


@given(st.integers(1, 20).flatmap(lambda n: st.tuples(st.permutations(range(n)), st.integers(0, n - 1))))
def test_a_repeated_id_is_named(case: tuple[list[int], int]) -> None:
    arrival, again = case
    with pytest.raises(OutOfOrder, match=f"id {again} came twice"):
        ordered([*arrival, again, len(arrival)])


def test_missing_ids_are_named() -> None:
    with pytest.raises(OutOfOrder, match="without id 1, 3; the last that came is 4"):
        ordered([0, 2, 4])
    with pytest.raises(
        OutOfOrder, match=r"without id 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, \.\.\.; the last that came is 12"
    ):
        ordered([12])


def test_a_negative_id_is_refused() -> None:
    with pytest.raises(OutOfOrder, match="id -1 is below 0"):
        ordered([0, -1])


def test_items_leave_as_soon_as_they_are_next() -> None:
    with InlinePipeline() as pipeline:
        tx, rx = pipeline.channel("numbers", items=8)
        results = pipeline.results(in_order(rx, key=lambda number: number))
        for number in (1, 0, 3):
            pipeline.run(tx.send(number))
        assert [next(results), next(results)] == [0, 1]
        pipeline.run(tx.send(2))
        tx.close()
        assert list(results) == [2, 3]
