"""What handing an item from one thread to another costs, beside the standard library's queue."""

from __future__ import annotations

import threading
from queue import Queue
from typing import Any

import pytest

from dflash.pipeline import ENGINES, Sender, open_engine

ITEMS = 2000


async def send_all(outbox: Sender[int]) -> None:
    for i in range(ITEMS):
        await outbox.send(i)


def through_channel(engine: str, capacity: int) -> int:
    with open_engine(engine) as pipeline:
        tx, rx = pipeline.channel("items", items=capacity)
        pipeline.start("send_all", send_all, tx)
        return sum(pipeline.results(rx))


def through_queue(capacity: int) -> int:
    queue: Queue[int | None] = Queue(capacity)

    def put_all() -> None:
        for i in range(ITEMS):
            queue.put(i)
        queue.put(None)

    thread = threading.Thread(target=put_all)
    thread.start()
    total = 0
    while (item := queue.get()) is not None:
        total += item
    thread.join()
    return total


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("capacity", [1, 4, 16])
def test_channel(benchmark: Any, engine: str, capacity: int) -> None:
    benchmark.group = f"hand over {ITEMS} items, capacity {capacity}"
    total = benchmark.pedantic(through_channel, args=(engine, capacity), rounds=5, warmup_rounds=1)
    assert total == sum(range(ITEMS))


@pytest.mark.parametrize("capacity", [1, 4, 16])
def test_queue(benchmark: Any, capacity: int) -> None:
    benchmark.group = f"hand over {ITEMS} items, capacity {capacity}"
    total = benchmark.pedantic(through_queue, args=(capacity,), rounds=5, warmup_rounds=1)
    assert total == sum(range(ITEMS))
