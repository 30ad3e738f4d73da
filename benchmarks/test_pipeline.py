"""What the pipeline's hot paths cost, beside what one would take without it.

Ratios with bounds, over runs of a minute, are in pipeline.py.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import torch

from dflash.pipeline import ENGINES, Sender, open_engine
from dflash.pipeline.slots import SlotRing
from dflash.pipeline.telemetry import StageClock

sys.path.insert(0, str(Path(__file__).parent))  # as every worker finds this folder's modules

import pipeline
from sleeping import Shape, run_asleep

ITEMS = 2000


async def send_all(outbox: Sender[int]) -> None:
    for i in range(ITEMS):
        await outbox.send(i)


def through_channel(engine: str, capacity: int) -> int:
    with open_engine(engine) as opened:
        tx, rx = opened.channel("items", items=capacity)
        opened.start("send_all", send_all, tx)
        return sum(opened.results(rx))


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


@pytest.mark.parametrize(
    "through", [pipeline.through_slots, pipeline.through_queue], ids=["slots", "fresh tensors in a queue"]
)
def test_tensors(benchmark: Any, through: Any) -> None:
    benchmark.group = "10 tensors of 50 MB to another process, its start among it"
    times = benchmark.pedantic(through, args=(50_000_000, 10), rounds=3, warmup_rounds=1)
    assert len(times) == 10


@pytest.mark.parametrize("how", ["slot", "copy"])
def test_fill(benchmark: Any, how: str) -> None:
    """A slot is one copy, and nothing more."""
    benchmark.group = "50 MB into a slot, or into memory that is there"
    tensor, ring = torch.ones(12_500_000), SlotRing(1, 50_000_000)
    there = torch.empty_like(tensor)
    benchmark((lambda: ring.fill(0, tensor)) if how == "slot" else (lambda: there.copy_(tensor)))


@pytest.mark.parametrize("engine", ENGINES)
def test_stages(benchmark: Any, engine: str) -> None:
    benchmark.group = "400 empty micro-batches through all stages"
    shape = Shape(targets=1, drafters=1, slots=3)
    ends = benchmark.pedantic(run_asleep, args=(engine, shape, 100, None), rounds=3, warmup_rounds=1)
    assert len(ends) == 100


def test_clock(benchmark: Any) -> None:
    """What telemetry adds to every change of what a stage does."""
    benchmark.group = "telemetry"
    clock = StageClock("stage", "busy")
    benchmark(clock.switch, "starved")
