"""Work on chunks of rows in several processes, with the results in order."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from dflash.errors import DflashError
from dflash.processes import become_child, interrupts_later, start_fork_server

Chunk = TypeVar("Chunk", contravariant=True)
Result = TypeVar("Result", covariant=True)

_SECONDS_TO_END = 5.0


class Job(Protocol[Chunk, Result]):
    """What is done with each chunk. It is sent to other processes, so it holds settings and nothing open."""

    def open(self) -> Callable[[Chunk], Result]:
        """Load what is needed and return the function that does it."""


def work_in_order(job: Job[Chunk, Result], chunks: Iterable[Chunk], processes: int) -> Generator[Result]:
    """The results of all chunks in their order, whatever the number of processes; one works in this process.

    Chunks are dealt in turn, and only a little ahead of the results, so that memory is bounded by a few of
    them. A worker ends when this process ends, in whatever way, or when the iterator is closed.

    Raises:
        DflashError: a worker was killed.
        Exception: what the job raises, for the first chunk in order that it fails on.
    """
    if processes == 1:
        yield from map(job.open(), chunks)
        return
    with ExitStack() as stack:
        workers = [stack.enter_context(_worker(job)) for _ in range(processes)]
        waiting: deque[Connection] = deque()
        for number, chunk in enumerate(chunks):
            worker = workers[number % processes]
            with _killed_is_said():
                worker.send(chunk)
            waiting.append(worker)
            if len(waiting) > 2 * processes:
                yield _result(waiting.popleft())
        while waiting:
            yield _result(waiting.popleft())


def _result(worker: Connection) -> Any:
    with _killed_is_said():
        error, result = worker.recv()
    if error is not None:
        raise error
    return result


@contextmanager
def _killed_is_said() -> Iterator[None]:
    try:
        yield
    except (EOFError, ConnectionError) as error:
        raise DflashError(
            "a worker process was killed, as happens when memory runs out: try fewer --processes"
        ) from error


@contextmanager
def _worker(job: Job[Any, Any]) -> Iterator[Connection]:
    """The pipe of a new process. It ends with the block, in the midst of its work if need be."""
    # By way of a server: a fork of this process would inherit locks that its threads may hold for ever.
    context = multiprocessing.get_context("forkserver")
    with interrupts_later():
        start_fork_server()
        ours, theirs = context.Pipe()
        process = context.Process(target=_child, args=(theirs, job))
        process.start()
        theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join(_SECONDS_TO_END)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()


def _child(pipe: Connection, job: Job[Any, Any]) -> None:
    become_child()
    chunks: SimpleQueue[Any] = SimpleQueue()
    # Chunks are taken from the pipe at once: two that wait for each other to receive would wait for ever.
    threading.Thread(target=_receive, args=(pipe, chunks), daemon=True).start()
    work: Callable[[Any], Any] | None = None
    answer: tuple[Exception | None, Any]
    while True:
        chunk = chunks.get()
        try:
            work = work or job.open()  # here, where an error goes to who asked for the result
            answer = None, work(chunk)
        except Exception as error:
            answer = _portable(error), None
        with suppress(ConnectionError):  # nobody wants it any more, and the other thread ends us
            pipe.send(answer)


def _receive(pipe: Connection, chunks: SimpleQueue[Any]) -> None:
    with suppress(EOFError, ConnectionError):
        while True:
            chunks.put(pipe.recv())
    os._exit(0)


def _portable(error: Exception) -> Exception:
    """``error`` as it can be sent, with where it was raised."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return DflashError(f"{type(error).__name__}: {error}")
    return error
