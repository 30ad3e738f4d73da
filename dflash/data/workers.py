"""Work on chunks of rows in several processes, with the results in order."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeVar

from dflash.errors import DflashError

Chunk = TypeVar("Chunk", contravariant=True)
Result = TypeVar("Result", covariant=True)


class Job(Protocol[Chunk, Result]):
    """What is done with each chunk. It is sent to other processes, so it holds settings and nothing open."""

    def open(self) -> Callable[[Chunk], Result]:
        """Load what is needed and return the function that does it."""


def work_in_order(job: Job[Chunk, Result], chunks: Iterable[Chunk], processes: int) -> Generator[Result]:
    """The results of all chunks in their order, whatever the number of processes; one works in this process.

    Chunks are taken only a little ahead of the results, so that memory is bounded by a few of them. A worker
    ends when this process ends, in whatever way, or when the iterator is closed.

    Raises:
        DflashError: a worker was killed.
        Exception: what the job raises, for the first chunk in order that it fails on.
    """
    if processes == 1:
        yield from map(job.open(), chunks)
        return
    # Fresh processes: a fork would inherit locks that threads of this one may hold for ever.
    context = multiprocessing.get_context("spawn")
    theirs, ours = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(processes, context, _start, (job, theirs))
    with _interrupts_held():
        for _ in range(processes):
            pool.submit(int)  # each of these starts a process
    waiting: deque[Future[Any]] = deque()
    try:
        for chunk in chunks:
            waiting.append(pool.submit(_work, chunk))
            if len(waiting) > 2 * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
        pool.shutdown()
    except BrokenProcessPool as error:
        raise DflashError(
            "a worker process was killed, as happens when memory runs out: try fewer --processes"
        ) from error
    finally:
        ours.close()  # workers that still work stop at once
        pool.shutdown(cancel_futures=True)
        theirs.close()


_job: Any = None
_opened: Callable[[Any], Any] | None = None


def _start(job: Any, parent: Connection) -> None:
    global _job
    _job = job
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Connection) -> None:
    # Nobody ever sends: what comes is the end of the stream, when the other end or its process has gone.
    with contextlib.suppress(EOFError):
        parent.recv_bytes()
    os._exit(1)


def _work(chunk: Any) -> Any:
    global _opened
    _opened = _opened or _job.open()  # here, where an error goes to who asked for the result
    return _opened(chunk)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C waits till the end of the block, and never reaches the processes started in it: a blocked signal
    is blocked in them too.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
