"""What every process that we start has in common: it cannot be half started, and it outlives nobody."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import connection


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Ctrl-C waits until the block is left: a process half started could not be ended.

    By a handler and not by a signal mask: that holds for one thread, and libraries have threads of their own.
    Outside the main thread, which alone is ever interrupted, nothing needs to wait.
    """
    came: list[int] = []
    try:
        before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came and callable(before):
        before(signal.SIGINT, None)


def become_child() -> None:
    """First thing in a child: the parent decides what Ctrl-C means, and nobody outlives it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, name="dflash-parent", daemon=True).start()
    os.dup2(2, 1)  # whatever a library prints stays out of our output


def _die_with_parent() -> None:
    # The kernel's own signal for this is sent when the fork server ends, which waits for us.
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGKILL)


def how_it_ended(code: int | None) -> str:
    """A process's exit code in words."""
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
