from __future__ import annotations

import json
import time
from dataclasses import asdict

import pytest

from dflash.pipeline import Receiver, Sender, StageTelemetry, Telemetry, open_engine, span
from dflash.pipeline.telemetry import StageClock

PARTS = ("busy", "starved", "blocked", "copy", "barrier")


async def work(inbox: Receiver[int], outbox: Sender[int], seconds: float) -> None:
    async for i in inbox:
        time.sleep(seconds)
        await outbox.send(i)


async def feed(outbox: Sender[int], n: int) -> None:
    for i in range(n):
        await outbox.send(i)


def assert_whole(telemetry: Telemetry) -> None:
    for stage in telemetry.stages:
        assert sum(getattr(stage, part) for part in PARTS) == pytest.approx(stage.wall, abs=1e-6)
        assert all(getattr(stage, part) >= 0 for part in PARTS)


def test_a_sleeping_stage_is_the_bottleneck() -> None:
    with open_engine("thread") as pipeline:
        a_tx, a_rx = pipeline.channel("a", items=2)
        b_tx, b_rx = pipeline.channel("b", items=2)
        c_tx, c_rx = pipeline.channel("c", items=2)
        pipeline.start("feed", feed, a_tx, 30)
        pipeline.start("target", work, a_rx, b_tx, 0.01)
        pipeline.start("drafter", work, b_rx, c_tx, 0.001)
        list(pipeline.results(c_rx))
    telemetry = pipeline.snapshot()
    assert_whole(telemetry)
    assert all(stage.wall <= telemetry.seconds for stage in telemetry.stages)
    upstream, target, downstream, caller = telemetry.stages
    assert telemetry.bottleneck == "target"
    assert target.busy > 0.5 * target.wall
    assert upstream.blocked > 0.5 * upstream.wall
    assert downstream.starved > 0.5 * downstream.wall
    assert caller.name == "caller"
    assert caller.starved > 0.5 * caller.wall
    a, _b, c = telemetry.channels
    assert a.seconds_full > a.seconds_empty
    assert c.seconds_empty > c.seconds_full
    assert (a.peak_items, a.total_items) == (2, 30)


def test_time_of_each_kind_is_where_it_belongs(engine: str) -> None:
    async def work_in_parts(outbox: Sender[int]) -> None:
        with span("copy"):
            time.sleep(0.02)
            await outbox.send(0)
            await outbox.send(1)  # waits for the caller: blocked, and then copy again
            time.sleep(0.02)
        with span("barrier"):
            time.sleep(0.03)
        time.sleep(0.01)

    with open_engine(engine) as pipeline:
        tx, rx = pipeline.channel("a", items=1)
        pipeline.start("work", work_in_parts, tx)
        assert pipeline.run(rx.receive()) == 0
        time.sleep(0.05)
        assert list(pipeline.results(rx)) == [1]
    telemetry = pipeline.snapshot()
    assert_whole(telemetry)
    (stage, _caller) = telemetry.stages
    assert stage.copy >= 0.04
    assert stage.barrier >= 0.03
    assert stage.busy >= 0.01
    assert stage.busy + stage.copy + stage.barrier < stage.wall
    if engine == "inline":  # it cannot run while the caller sleeps
        assert stage.starved + stage.blocked >= 0.05


def test_an_interval_is_the_difference_of_two_moments(engine: str) -> None:
    with open_engine(engine) as pipeline:
        a_tx, a_rx = pipeline.channel("a", items=1)
        b_tx, b_rx = pipeline.channel("b", items=1)
        start = pipeline.snapshot()
        pipeline.start("feed", feed, a_tx, 12)
        pipeline.start("target", work, a_rx, b_tx, 0.002)
        results = pipeline.results(b_rx)
        for _ in range(4):
            next(results)
        middle = pipeline.snapshot()
        list(results)
        end = pipeline.snapshot()
    first, second, whole = middle - start, end - middle, end - start
    for interval in (first, second, whole):
        assert_whole(interval)
    assert first.seconds + second.seconds == pytest.approx(whole.seconds)
    for part in ("wall", *PARTS):
        values = [getattr(interval.stages[1], part) for interval in (first, second, whole)]
        assert values[0] + values[1] == pytest.approx(values[2], abs=1e-9)
    counted = [interval.channels[1].total_items for interval in (first, second, whole)]
    assert counted[0] + counted[1] == counted[2] == 12
    assert second.stages[1].busy >= 0.002 * (12 - 4 - 3)  # at most 3 were on their way at the first moment


def test_a_snapshot_while_running_grows_and_stops_with_the_stage() -> None:
    with open_engine("thread") as pipeline:
        tx, rx = pipeline.channel("a", items=1)
        pipeline.start("feed", feed, tx, 3)
        earlier = pipeline.snapshot().stages[0]
        list(pipeline.results(rx))
        later = pipeline.snapshot().stages[0]
        assert later.wall > earlier.wall
    ended = pipeline.snapshot()
    assert pipeline.snapshot().stages == ended.stages
    assert pipeline.snapshot().channels == ended.channels


def test_it_is_plain_data() -> None:
    with open_engine("inline") as pipeline:
        tx, rx = pipeline.channel("a", items=1, bytes=8)
        pipeline.run(tx.send(b"", nbytes=7))
        assert pipeline.run(rx.receive()) == b""
    telemetry = pipeline.snapshot()
    assert json.loads(json.dumps(asdict(telemetry)))["channels"][0]["peak_bytes"] == 7
    with pytest.raises(AttributeError):
        telemetry.seconds = 0.0  # type: ignore[misc]


def test_the_earlier_of_equally_busy_stages_is_the_bottleneck() -> None:
    stages = tuple(
        StageTelemetry(name=name, busy=busy) for name, busy in [("a", 1.0), ("b", 2.0), ("c", 2.0)]
    )
    assert Telemetry(seconds=2.0, stages=stages, channels=()).bottleneck == "b"


def test_a_span_outside_a_stage_measures_nothing() -> None:
    with span("copy"):
        pass


def test_the_parts_of_a_clock_add_up_exactly() -> None:
    clock = StageClock("a", "busy")
    before = [clock.switch(kind) for kind in ("copy", "busy", "starved", "blocked", "barrier", "busy")]
    assert before == ["busy", "copy", "busy", "starved", "blocked", "barrier"]
    clock.stop()
    stopped = clock.read()
    assert round(stopped.wall * 1e9) == sum(round(getattr(stopped, part) * 1e9) for part in PARTS) > 0
    time.sleep(1e-3)
    assert clock.read() == stopped
