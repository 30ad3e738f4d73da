"""The first Ctrl-C or SIGTERM asks, the second does not."""

from __future__ import annotations

import os
import signal

import pytest

from dflash.training.interrupts import graceful_stop


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_the_first_asks_and_the_second_ends(first, second):
    told = []
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt), graceful_stop(told.append) as stop:
        assert not stop.asked
        os.kill(os.getpid(), first)
        assert stop.asked and len(told) == 1
        os.kill(os.getpid(), second)
        pytest.fail("the second one ends it")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
