"""Several trials at once, each in a fresh process."""

from __future__ import annotations

import os
import time

import pytest
import trial_jobs

from dflash.bench.exchange import Failure
from dflash.bench.launcher import Launcher


@pytest.fixture(scope="module")
def launcher():
    with Launcher("qwen3") as one:
        yield one


def test_results_come_in_order_each_from_a_process_of_its_own(launcher):
    told = []
    answers = launcher.call_all(
        trial_jobs.preloaded, [None] * 4, 2, lambda number, answer: told.append((number, answer))
    )
    assert [preloaded for preloaded, _ in answers] == [{True}] * 4
    assert len({pid for _, pid in answers} | {os.getpid()}) == 5
    assert sorted(told) == list(enumerate(answers))


def test_failures_take_their_own_place_only(launcher):
    def told(number, answer):
        assert isinstance(answer, Failure)

    answers = launcher.call_all(trial_jobs.fail, [None, None], 2, told)
    assert [answer.message for answer in answers] == ["ValueError: no way"] * 2
    (died,) = launcher.call_all(trial_jobs.die, [None], 2, told)
    assert "SIGKILL" in died.message


def test_an_interrupt_ends_those_that_run(launcher, tmp_path):
    marker = tmp_path / "pid"

    def stop(number, answer):
        deadline = time.monotonic() + 60
        while not (marker.exists() and marker.read_text()) and time.monotonic() < deadline:
            time.sleep(0.01)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launcher.call_all(trial_jobs.sleep_or_fail, [str(marker), None], 2, stop)
    with pytest.raises(ProcessLookupError):
        os.kill(int(marker.read_text()), 0)
