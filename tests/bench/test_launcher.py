"""Fresh processes: one thread, an answer or a reason, nobody left behind."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
from trial_jobs import die, fail, preloaded, sleep, threads_of_a_busy_stage

from dflash.bench.exchange import Failure
from dflash.bench.launcher import Launcher


@pytest.fixture(scope="module")
def launcher():
    with Launcher("qwen3") as launcher:
        yield launcher


def test_one_thread_means_one_thread(launcher):
    used = launcher.call(threads_of_a_busy_stage, None)
    assert used["threads"] == 1
    # A second intra-op thread would double the process's CPU time; the caller's waiting costs none.
    assert used["process"] < 1.2 * used["thread"]


def test_processes_are_fresh_and_have_torch_and_the_targets_module(launcher):
    (one, first), (other, second) = (launcher.call(preloaded, None) for _ in range(2))
    assert one == other == {True}
    assert first != second != os.getpid()


def test_failure_and_death_are_one_line(launcher):
    failed = launcher.call(fail, None)
    assert isinstance(failed, Failure)
    assert failed.message == "ValueError: no way"
    assert "in fail" in failed.traceback
    died = launcher.call(die, None)
    assert isinstance(died, Failure)
    assert "SIGKILL" in died.message


def test_an_interrupt_ends_the_process_at_hand(launcher, tmp_path):
    marker = tmp_path / "pid"

    def interrupt():
        while not (marker.exists() and marker.read_text()):
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    with pytest.raises(KeyboardInterrupt):
        launcher.call(sleep, marker)
        time.sleep(60)
    watcher.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int(marker.read_text()), 0)
