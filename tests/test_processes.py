"""Interrupts that wait, and words for exit codes; children are tried in tests/pipeline/engines."""

from __future__ import annotations

import signal
import threading

import pytest

from dflash.processes import how_it_ended, interrupts_later


def test_ctrl_c_waits_for_the_end_of_the_block():
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts_later():
        signal.raise_signal(signal.SIGINT)
        done.append("all of it")
    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_every_signal_reaches_the_handler_that_was_there():
    came = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: came.append(number))
    try:
        with interrupts_later(), interrupts_later():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            assert came == []
        assert came == [signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_error_in_the_block_does_not_hide_an_interrupt():
    came = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        with pytest.raises(KeyError), interrupts_later():
            signal.raise_signal(signal.SIGINT)
            raise KeyError
        assert came == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_need_not_wait():
    ran = []

    def run():
        with interrupts_later():
            ran.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert ran


@pytest.mark.parametrize(
    ("code", "words"),
    [(-9, "killed by SIGKILL"), (-11, "killed by SIGSEGV"), (3, "exit code 3"), (None, "still running")],
)
def test_exit_codes_in_words(code, words):
    assert how_it_ended(code) == words
