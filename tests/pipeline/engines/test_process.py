"""What only processes can do wrong: die, be orphaned, run out of descriptors."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import re
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import process_stages
import pytest
import torch
from sessions import members, nobody_is_left

from dflash.errors import DflashError, StageError, UsageError
from dflash.pipeline import open_engine
from dflash.pipeline.engines.process import PRELOADED
from dflash.pipeline.slots import ALIGNMENT, SlotRing
from dflash.testing.engines import fill_slots, hand_on, read_slots

pytestmark = pytest.mark.timeout(60)


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
        pipeline.start("count", process_stages.count, tx, 10)
        pipeline.start_apart("kill", process_stages.kill_at, rx, out_tx, 3)
        list(pipeline.results(out_rx))
    assert not multiprocessing.active_children()


def test_a_worker_that_dies_while_it_waits_is_noticed_at_once():
    """Its thread waits for a channel, not for the worker: only the sentinel can tell."""
    expected = r"stage idle failed: its process died \(killed by SIGKILL\)"
    with pytest.raises(StageError, match=expected):  # noqa: SIM117
        with open_engine("process") as pipeline:
            pids_tx, pids_rx = pipeline.channel("pids", items=1)
            _never_tx, never_rx = pipeline.channel("never", items=1)
            pipeline.start_apart("idle", process_stages.tell_pid, pids_tx, never_rx)
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
        pipeline.start_apart("deaf", process_stages.ignore_sigterm, tx)
        pid = pipeline.run(rx.receive())
        raise KeyError
    assert gone(pid)
    assert time.perf_counter() - began < 30


def start(tmp_path: Path, script: str) -> subprocess.Popen[str]:
    """A program that uses the engine, in a session of its own."""
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(script))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path(process_stages.__file__).parent), *sys.path])
    }
    return subprocess.Popen(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment,
    )


def test_workers_die_with_a_parent_that_is_killed(tmp_path):
    """One that waits and one that computes."""
    program = start(
        tmp_path,
        """
        import time
        import process_stages
        from dflash.pipeline import open_engine
        if __name__ == "__main__":
            with open_engine("process") as pipeline:
                tx, rx = pipeline.channel("pids", items=3)
                _tx, never_rx = pipeline.channel("never", items=1)
                pipeline.start_apart("waits", process_stages.tell_pid, tx.clone(), never_rx)
                pipeline.start_apart("computes", process_stages.hold_the_interpreter, tx)
                print(pipeline.run(rx.receive()), pipeline.run(rx.receive()), flush=True)
                time.sleep(100)
        """,
    )
    assert program.stdout is not None
    pids = [int(word) for word in program.stdout.readline().split()]
    assert set(pids) < set(members(program.pid))
    program.kill()
    program.communicate()
    assert nobody_is_left(program.pid)


def test_signals_to_everyone_are_for_the_parent_to_judge(tmp_path):
    """A terminal's Ctrl-C and a scheduler's SIGTERM reach workers too, from their first moment on."""
    program = start(
        tmp_path,
        """
        import signal
        import process_stages
        from dflash.pipeline import open_engine
        if __name__ == "__main__":
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: None)
            print("ready", flush=True)
            with open_engine("process") as pipeline:
                tx, rx = pipeline.channel("pids", items=1)
                for worker in range(2):
                    pipeline.start_apart(f"worker-{worker}", process_stages.tell_signals, tx.clone())
                pids = {pipeline.run(rx.receive()) for _ in range(200)}
            print(len(pids), flush=True)
        """,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    while program.poll() is None:
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, number)
        time.sleep(0.02)
    assert program.stdout.read() == "2\n"
    program.communicate()
    assert nobody_is_left(program.pid)


@pytest.fixture
def low_limit():
    """Room for 40 more descriptors."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 40, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_an_interrupt_at_any_moment_leaves_no_worker():
    times = random.Random(0)
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    for _ in range(25):
        with contextlib.suppress(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, times.uniform(0.001, 0.15))
            with open_engine("process", grace=0.3) as pipeline:
                tx, rx = pipeline.channel("in", items=1)
                out_tx, out_rx = pipeline.channel("out", items=1)
                pipeline.start("count", process_stages.count, tx, 10**9)
                for worker in range(2):
                    pipeline.start_apart(f"worker-{worker}", hand_on, rx.clone(), out_tx.clone())
                for _ in pipeline.results(out_rx):
                    pass
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert not multiprocessing.active_children()
        assert not [thread for thread in threading.enumerate() if "worker" in thread.name]


@contextlib.contextmanager
def busy_worker(**settings):
    """A pipeline whose worker computes without end; yields both."""
    with open_engine("process", **settings) as pipeline:
        tx, rx = pipeline.channel("pids", items=1)
        pipeline.start_apart("computes", process_stages.hold_the_interpreter, tx)
        pid = pipeline.run(rx.receive())
        (worker,) = pipeline._supervisor.alive
        while worker.work is None:
            time.sleep(0.01)
        yield pid


def test_ctrl_c_does_not_wait_for_a_worker_that_computes():
    """The grace time is for failures."""
    with pytest.raises(KeyboardInterrupt), busy_worker(grace=300) as pid:
        signal.raise_signal(signal.SIGINT)
    assert gone(pid)


def test_an_interrupt_while_workers_are_waited_for_kills_them():
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), busy_worker(grace=300) as pid:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        raise KeyError
    assert gone(pid)


def test_a_worker_whose_own_child_holds_its_pipe_is_missed():
    with (
        pytest.raises(StageError, match=r"its process died \(killed by SIGKILL\)"),
        open_engine("process") as pipeline,
    ):
        tx, rx = pipeline.channel("pids", items=1)
        pipeline.start_apart("parent", process_stages.leave_a_child_behind, tx)
        child = pipeline.run(rx.receive())
        try:
            pipeline.run(rx.receive())
        finally:
            os.kill(child, signal.SIGKILL)


def test_workers_end_with_the_fork_server():
    """It alone would hear of their end. The next engine starts another."""
    for _ in range(2):
        died = r"stage computes failed while working on a riddle: its process died \(exit code 255\)"
        with pytest.raises(StageError, match=died), busy_worker() as pid:
            server = multiprocessing.forkserver._forkserver._forkserver_pid
            os.kill(server, signal.SIGKILL)
            assert gone(pid)
            assert gone(server)


@pytest.mark.parametrize(
    ("hook", "what"),
    [
        (process_stages.broken_hook, "RuntimeError: no such device"),
        (process_stages.deadly_hook, r"its process died \(exit code 7\)"),
    ],
)
def test_a_worker_that_fails_before_its_stage_begins_is_named(hook, what):
    with (
        pytest.raises(StageError, match=f"^stage tell failed: {what}$"),
        open_engine("process", on_thread_start=hook) as pipeline,
    ):
        tx, rx = pipeline.channel("out", items=1)
        pipeline.start_apart("tell", process_stages.threads_and_hook, tx)
        pipeline.run(rx.receive())


@pytest.mark.parametrize(
    ("thing", "what"),
    [
        (lambda: 1, "lambda"),
        (torch.zeros(2), "a tensor cannot go through a pipe"),
        ({"lock": threading.Lock()}, "lock"),
    ],
)
def test_arguments_that_cannot_travel_are_refused_in_a_line(thing, what):
    with pytest.raises(DflashError) as refused, open_engine("process") as pipeline:
        _tx, rx = pipeline.channel("in", items=1)
        pipeline.start_apart("receive", process_stages.receive_thing, rx, thing)
    assert re.fullmatch(f"stage receive cannot be started in a process: .*{what}.*", str(refused.value))


def test_arguments_that_cannot_be_opened_are_told_in_a_line():
    expected = "^stage receive failed: FileNotFoundError: no store here$"
    with pytest.raises(StageError, match=expected), open_engine("process") as pipeline:
        tx, rx = pipeline.channel("in", items=1)
        pipeline.start_apart("receive", process_stages.receive_thing, rx, process_stages.CannotBeOpened())
        pipeline.run(tx.send(1))
        pipeline.run(tx.send(1))


def test_an_exception_that_holds_a_tensor_still_tells_its_text():
    with pytest.raises(StageError, match=r"WithTensor: .*bad weights"), open_engine("process") as pipeline:
        tx, rx = pipeline.channel("out", items=1)
        pipeline.start_apart("raise", process_stages.raise_with_tensor, tx)
        pipeline.run(rx.receive())


@pytest.mark.parametrize("hangs", [0, 1, None])
def test_who_keeps_a_group_waiting_is_named_and_not_who_waits(hangs):
    """Whoever is silent for longest; None: a reduction in which everyone is and that never returns."""
    with (
        pytest.raises(StageError, match=r"no progress for .* s while working on window 3") as raised,
        open_engine("process", stall_after=1.0, grace=0.2) as pipeline,
    ):
        tx, rx = pipeline.channel("out", items=2)
        for rank in range(2):
            pipeline.start_apart(f"drafter-{rank}", process_stages.meet, tx.clone(), rank == hangs)
        tx.close()
        list(pipeline.results(rx))
    assert hangs is None or f"stage drafter-{hangs} " in str(raised.value)
    assert any("in meet" in note for note in raised.value.__notes__), "with the worker's own stacks"
    assert not multiprocessing.active_children()


def test_the_fork_server_never_touches_cuda():
    """CUDA cannot be used in a fork of a process that has."""
    script = f"""
import torch
def touched(*_): raise SystemExit("CUDA was touched")
for name in ("is_available", "device_count", "init", "_lazy_init", "current_device", "get_device_properties"):
    setattr(torch.cuda, name, touched)
import importlib
for name in {(*PRELOADED, "dflash.training.run", "transformers.models.qwen3.modeling_qwen3")!r}:
    importlib.import_module(name)
assert not torch.cuda.is_initialized()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_thousands_of_micro_batches_need_no_more_memory_and_few_descriptors(low_limit):
    """PSS, which counts shared pages once, of this process and its workers, in bytes."""
    with open_engine("process", on_thread_start=process_stages.few_descriptors) as pipeline:
        slots = pipeline.slots(3, nbytes=3 * 3 * 8)
        numbers_tx, numbers_rx = pipeline.channel("numbers", items=1)
        filled_tx, filled_rx = pipeline.channel("filled", items=1)
        sums_tx, sums_rx = pipeline.channel("sums", items=1)
        pipeline.start("count", process_stages.count, numbers_tx, 5000)
        pipeline.start_apart("fill", fill_slots, numbers_rx, filled_tx, slots)
        pipeline.start_apart("read", read_slots, filled_rx, sums_tx, slots)
        pids = [os.getpid(), *(process.pid for process in multiprocessing.active_children())]
        shares = {}
        for number, total in enumerate(pipeline.results(sums_rx)):
            assert total == 3.0 * (number % 4) * number
            if number in (1000, 4900):
                shares[number] = sum(map(share_of_memory, pids))
    assert number == 4999
    assert shares[4900] - shares[1000] < 2_000_000


def share_of_memory(pid: int) -> int:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    # Without pages of files, whose shares change with what other processes load.
    parts = re.findall(r"^Pss_(?:Anon|Shmem): *(\d+) kB$", rollup, re.MULTILINE)
    assert len(parts) == 2
    return sum(map(int, parts)) * 1024


def test_messages_larger_than_a_pipe_pass():
    with open_engine("process") as pipeline:
        tx, rx = pipeline.channel("in", items=1)
        out_tx, out_rx = pipeline.channel("out", items=1)
        pipeline.start("count", process_stages.count, tx, 3)
        pipeline.start_apart("big", process_stages.send_big, rx, out_tx)
        found = list(pipeline.results(out_rx))
    assert [(len(one), int(one[0]), int(one[-1])) for one in found] == [(1_000_000, i, i) for i in range(3)]


def test_a_tensor_is_refused_by_pipes():
    with (
        pytest.raises(StageError, match="a tensor cannot go through a pipe"),
        open_engine("process") as pipeline,
    ):
        tx, rx = pipeline.channel("out", items=1)
        pipeline.start_apart("send", process_stages.send_tensor, tx)
        pipeline.run(rx.receive())


def test_the_hook_runs_first_in_every_worker():
    with open_engine("process", on_thread_start=process_stages.hook) as pipeline:
        tx, rx = pipeline.channel("out", items=1)
        pipeline.start_apart("tell", process_stages.threads_and_hook, tx)
        assert pipeline.run(rx.receive()) == (1, "ran")


def test_an_exception_that_cannot_travel_keeps_its_name_and_text():
    expected = "stage raise failed: RuntimeError: Picky: 1 is not 2"
    with pytest.raises(StageError, match=expected) as raised, open_engine("process") as pipeline:
        tx, rx = pipeline.channel("out", items=1)
        pipeline.start_apart("raise", process_stages.raise_picky, tx)
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
            pipeline.start("count", process_stages.count, tx, 3)
            pipeline.start_apart("big", process_stages.send_big, rx, out_tx)
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
