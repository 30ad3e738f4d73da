from __future__ import annotations

import threading

import pytest

from dflash.pipeline import Receiver, Sender, open_engine


async def note(outbox: Sender[str], name: str, notes: list[str]) -> None:
    for i in range(3):
        notes.append(f"{name}{i}")
        await outbox.send(name)


async def drain(inbox: Receiver[str]) -> None:
    async for _ in inbox:
        pass


def test_stages_take_turns_in_the_callers_thread() -> None:
    threads = threading.active_count()
    notes: list[str] = []
    with open_engine("inline") as pipeline:
        tx, rx = pipeline.channel("a", items=9)
        for name in "xyz":
            pipeline.start(name, note, tx.clone(), name, notes)
        assert not notes  # nothing runs until the caller waits for something
        assert threading.active_count() == threads
        tx.close()
        pipeline.start("drain", drain, rx)
    assert notes == ["x0", "y0", "z0", "x1", "y1", "z1", "x2", "y2", "z2"]


def test_the_hook_runs_once_for_the_one_thread() -> None:
    calls: list[int] = []
    with open_engine("inline", on_thread_start=lambda: calls.append(threading.get_ident())):
        pass
    assert calls == [threading.get_ident()]


def test_an_interrupt_inside_a_stage_is_the_callers() -> None:
    async def interrupted(outbox: Sender[int]) -> None:
        await outbox.send(1)
        raise KeyboardInterrupt

    ended = []

    async def other(inbox: Receiver[int]) -> None:
        try:
            await inbox.receive()
            await inbox.receive()
        finally:
            ended.append("other")

    with pytest.raises(KeyboardInterrupt), open_engine("inline") as pipeline:
        tx, rx = pipeline.channel("a", items=1)
        pipeline.start("interrupted", interrupted, tx)
        pipeline.start("other", other, rx)
        pipeline.run(pipeline.channel("b", items=1)[1].receive())
    assert ended == ["other"]


def test_a_stage_that_never_ran_is_closed_without_running() -> None:
    notes: list[str] = []
    with pytest.raises(LookupError), open_engine("inline") as pipeline:
        tx, _rx = pipeline.channel("a", items=1)
        pipeline.start("x", note, tx, "x", notes)
        raise LookupError
    assert notes == []
