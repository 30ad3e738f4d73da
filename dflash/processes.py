"""What every process that we start has in common: it cannot be half started, and it outlives nobody."""

from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import connection, forkserver, resource_tracker

_PR_SET_PDEATHSIG = 1
_HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""What could end a process between its fork and :func:`become_child`."""


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until the block is left: a process half started could not be ended.

    By a handler and not by a signal mask: that holds for one thread, and libraries have threads of their own.
    Outside the main thread, which alone is ever interrupted, nothing needs to wait.
    """
    came: list[int] = []
    numbers = signal.SIGINT, signal.SIGTERM
    try:
        before = {
            number: signal.signal(number, lambda number, _frame: came.append(number)) for number in numbers
        }
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for one in came:
            signal.raise_signal(one)


def start_fork_server() -> None:
    """Start the server of which workers are forks, unless it runs.

    A terminal sends Ctrl-C, and many a job scheduler SIGTERM, to everyone. Neither the server, which would
    take all workers with it, nor a worker that has only just begun must end by that, so both are born with
    these signals blocked.
    """
    resource_tracker.ensure_running()  # which would unblock them again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def become_child() -> None:
    """First thing in a child: the parent decides what Ctrl-C and SIGTERM mean, and nobody outlives it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
    _die_with_parent()
    os.dup2(2, 1)  # whatever a library prints stays out of our output


def _die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, or the fork server does.

    A thread that waited for that would need the interpreter, which a computation may hold for ever.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    pipe = parent.sentinel
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    # The usual signal for this comes when the fork server ends, which waits for us unless it is killed.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if connection.wait([pipe], timeout=0):
        os.kill(os.getpid(), signal.SIGKILL)


def how_it_ended(code: int | None) -> str:
    """A process's exit code in words."""
    if code is None:
        return "still running"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
