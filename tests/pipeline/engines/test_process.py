"""What only processes can do wrong: die, be orphaned, run out of descriptors."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from dflash.errors import StageError, UsageError
from dflash.pipeline import Receiver, Sender, open_engine, working_on
from dflash.pipeline.slots import ALIGNMENT, SlotRing

pytestmark = pytest.mark.timeout(60)


async def count(outbox: Sender[int], up_to: int) -> None:
    for number in range(up_to):
        await outbox.send(number)


async def tell_pid(outbox: Sender[int], inbox: Receiver[int]) -> None:
    await outbox.send(os.getpid())
    async for _ in inbox:
        pass


async def kill_at(inbox: Receiver[int], outbox: Sender[int], number: int) -> None:
    async for item in inbox:
        with working_on(f"item {item}"):
            if item == number:
                os.kill(os.getpid(), signal.SIGKILL)
        await outbox.send(item)


async def ignore_sigterm(outbox: Sender[int]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    await outbox.send(os.getpid())
    time.sleep(60)


async def send_big(inbox: Receiver[int], outbox: Sender[np.ndarray]) -> None:
    async for number in inbox:
        await outbox.send(np.full(1_000_000, number))


async def send_tensor(outbox: Sender[torch.Tensor]) -> None:
    await outbox.send(torch.zeros(3))


async def threads_and_hook(outbox: Sender[tuple[int, str | None]]) -> None:
    await outbox.send((torch.get_num_threads(), os.environ.get("HOOK")))


class Picky(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} is not {two}")


async def raise_picky(outbox: Sender[int]) -> None:
    raise Picky(1, 2)


def hook() -> None:
    os.environ["HOOK"] = "ran"
    torch.set_num_threads(1)


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_a_worker_that_dies_while_it_works_is_named_with_its_item():
    expected = r"^stage kill failed while working on item 3: its process died \(killed by SIGKILL\)$"
    with pytest.raises(StageError, match=expected), open_engine("process") as pipeline:
        tx, rx = pipeline.channel("in", items=1)
        out_tx, out_rx = pipeline.channel("out", items=1)
        pipeline.start("count", count, tx, 10)
        pipeline.start_apart("kill", kill_at, rx, out_tx, 3)
        list(pipeline.results(out_rx))
    assert not multiprocessing.active_children()


def test_a_worker_that_dies_while_it_waits_is_noticed_at_once():
    """Its thread waits for a channel, not for the worker: only the sentinel can tell."""
    expected = r"stage idle failed: its process died \(killed by SIGKILL\)"
    with pytest.raises(StageError, match=expected):  # noqa: SIM117
        with open_engine("process") as pipeline:
            pids_tx, pids_rx = pipeline.channel("pids", items=1)
            _never_tx, never_rx = pipeline.channel("never", items=1)
            pipeline.start_apart("idle", tell_pid, pids_tx, never_rx)
            pid = pipeline.run(pids_rx.receive())
            time.sleep(0.1)
            os.kill(pid, signal.SIGKILL)
            time.sleep(0.5)
            # Nothing waited for it until now; its death is known all the same.
            pipeline.run(pids_rx.receive())


def test_a_worker_that_ignores_sigterm_is_killed():
    began = time.perf_counter()
    with pytest.raises(KeyError), open_engine("process", grace=0.2) as pipeline:
        tx, rx = pipeline.channel("pids", items=1)
        pipeline.start_apart("deaf", ignore_sigterm, tx)
        pid = pipeline.run(rx.receive())
        raise KeyError
    assert gone(pid)
    assert time.perf_counter() - began < 30


def test_workers_die_with_a_parent_that_is_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, time
            from dflash.pipeline import open_engine
            async def sleep(outbox):
                await outbox.send(os.getpid())
                time.sleep(100)
            if __name__ == "__main__":
                with open_engine("process") as pipeline:
                    tx, rx = pipeline.channel("pids", items=3)
                    for i in range(3):
                        pipeline.start_apart(f"sleep-{i}", sleep, tx.clone())
                    print(*(pipeline.run(rx.receive()) for _ in range(3)), flush=True)
                    time.sleep(100)
            """
        )
    )
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    assert len(pids) == 3
    process.kill()
    process.communicate()
    assert all(gone(pid) for pid in pids)


def test_messages_larger_than_a_pipe_pass():
    with open_engine("process") as pipeline:
        tx, rx = pipeline.channel("in", items=1)
        out_tx, out_rx = pipeline.channel("out", items=1)
        pipeline.start("count", count, tx, 3)
        pipeline.start_apart("big", send_big, rx, out_tx)
        found = list(pipeline.results(out_rx))
    assert [(len(one), int(one[0]), int(one[-1])) for one in found] == [(1_000_000, i, i) for i in range(3)]


def test_a_tensor_is_refused_by_pipes():
    with (
        pytest.raises(StageError, match="a tensor cannot go through a pipe"),
        open_engine("process") as pipeline,
    ):
        tx, rx = pipeline.channel("out", items=1)
        pipeline.start_apart("send", send_tensor, tx)
        pipeline.run(rx.receive())


def test_the_hook_runs_first_in_every_worker():
    with open_engine("process", on_thread_start=hook) as pipeline:
        tx, rx = pipeline.channel("out", items=1)
        pipeline.start_apart("tell", threads_and_hook, tx)
        assert pipeline.run(rx.receive()) == (1, "ran")


def test_an_exception_that_cannot_travel_keeps_its_name_and_text():
    expected = "stage raise failed: RuntimeError: Picky: 1 is not 2"
    with pytest.raises(StageError, match=expected) as raised, open_engine("process") as pipeline:
        tx, rx = pipeline.channel("out", items=1)
        pipeline.start_apart("raise", raise_picky, tx)
        pipeline.run(rx.receive())
    cause = raised.value.__cause__
    assert cause is not None and "raise_picky" in str(cause.__cause__), "the remote traceback is kept"


def test_an_end_travels_with_its_stage_only():
    with open_engine("inline") as pipeline:
        tx, _ = pipeline.channel("out", items=1)
        with pytest.raises(TypeError, match="with its stage only"):
            multiprocessing.reduction.ForkingPickler.dumps(tx)


def test_engines_come_and_go_without_leaving_descriptors():
    before = None
    for _ in range(4):
        with open_engine("process") as pipeline:
            ring = pipeline.slots(2, nbytes=100)
            tx, rx = pipeline.channel("in", items=1)
            out_tx, out_rx = pipeline.channel("out", items=1)
            pipeline.start("count", count, tx, 3)
            pipeline.start_apart("big", send_big, rx, out_tx)
            assert len(list(pipeline.results(out_rx))) == 3
        del ring
        descriptors = len(os.listdir("/proc/self/fd"))
        before = before or descriptors  # the first one starts the fork server, which stays
        assert descriptors <= before


def test_slots_are_aligned_and_overwritten_in_turn():
    ring = SlotRing(2, nbytes=4 * 5)
    first = ring.fill(0, torch.arange(5, dtype=torch.float32))
    second = ring.fill(1, torch.ones(2, 2))
    assert (first.slot, second.slot) == (0, 1)
    seen = ring.read(first, torch.device("cpu"))
    assert seen.data_ptr() % ALIGNMENT == 0
    assert torch.equal(seen, torch.arange(5.0))
    assert torch.equal(ring.read(second, torch.device("cpu")), torch.ones(2, 2))
    ring.fill(2, torch.full((5,), 7.0))
    assert torch.equal(seen, torch.full((5,), 7.0)), "what is read is the slot itself: nothing is copied"
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        value = torch.tensor([1.5, -2.0], dtype=dtype)
        assert torch.equal(ring.read(ring.fill(1, value), torch.device("cpu")), value)


def test_features_too_large_for_a_slot_are_refused():
    with pytest.raises(Exception, match="68 bytes do not fit into a slot of 64"):
        SlotRing(1, nbytes=1).fill(0, torch.zeros(17))


def test_a_ring_larger_than_memory_is_refused_before_the_system_kills():
    with pytest.raises(UsageError, match=r"lower batching\.token_budget or pipeline\.depth"):
        SlotRing(4, nbytes=1 << 45)
