"""Ctrl-C and SIGTERM: the first ends a run after the window at hand, the second at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Whether somebody asked for the run to end."""

    def __init__(self) -> None:
        self.asked = False


@contextmanager
def graceful_stop(tell: Callable[[str], None]) -> Iterator[Stop]:
    """Within the block the first SIGINT or SIGTERM sets ``asked``; the second raises KeyboardInterrupt.

    Only the main thread may enter it, as Python runs signal handlers there.
    """
    stop = Stop()

    def handle(number: int, _frame: FrameType | None) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True
        again = "again ends it at once" if number == signal.SIGINT else "SIGINT ends it at once"
        tell(f"stopping: the windows under way are finished and a checkpoint is written; {again}")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
