"""The stages that ask for it in processes of their own, forked from a server that has torch loaded.

All others run on threads. On the caller's side each worker has a thread, which is the worker's stage to all
others: it takes the worker's messages and carries its operations out on the real channels. So nothing about
channels, deadlocks or telemetry is new here; what is new is that a worker can die.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from time import perf_counter
from typing import TYPE_CHECKING, Any

from dflash.errors import DflashError
from dflash.pipeline import wire
from dflash.pipeline.channel import End
from dflash.pipeline.engines.thread import ThreadPipeline
from dflash.pipeline.operation import Aborted, ChannelError, ItemTooLarge
from dflash.pipeline.stage import Stage, name_work, stage_error
from dflash.pipeline.wire import ConnectionLost, Parcel, PeerFailed, Spans, Wire
from dflash.processes import how_it_ended, interrupts_later, start_fork_server

if TYPE_CHECKING:
    from dflash.pipeline.slots import Slots

PRELOADED = ("torch", "dflash.pipeline.stages", "dflash.pipeline.wire")
_SECONDS_FOR_A_CAUSE = 2.0
"""How long a worker that names a peer waits for that peer's own failure to be noticed."""
_SECONDS_TO_DIE = 2.0
"""What a process is given to be gone after its pipe has closed, or after SIGKILL."""
_SECONDS_AFTER_CTRL_C = 1.0
"""Less than the grace time of failures: a person waits, and checkpoints appear whole or not at all."""
_SECONDS_TO_LOOK_AGAIN = 0.1
"""Between two looks at a dead worker's thread, which may have its last message still to take."""
_SECONDS_OF_SILENCE = 0.5
"""After which a worker has no more stacks to show."""


class RemoteTraceback(Exception):
    """The traceback of a worker's exception, as its cause."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass
class _Worker:
    stage: Stage
    process: Any
    wire: Wire
    stacks: Connection
    ends: list[End]
    guard: threading.Thread
    ended: threading.Event = field(default_factory=threading.Event)
    """set when its process has gone and ``code`` is its exit code"""
    code: int | None = None


class ProcessPipeline(ThreadPipeline):
    """See ``open_engine`` for the arguments; ``on_thread_start`` is the first call in every worker too."""

    has_processes = True

    def __init__(
        self,
        on_thread_start: Callable[[], None] | None = None,
        *,
        grace: float = 10.0,
        stall_after: float = 600.0,
        preload: Sequence[str] = (),
    ) -> None:
        super().__init__(on_thread_start, grace=grace, stall_after=stall_after)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([*PRELOADED, *preload])
        self._workers: list[_Worker] = []
        # An exit code can be asked for once; two who ask at the same time would get two answers.
        self._asking = threading.Lock()

    def slots(self, count: int, *, nbytes: int) -> Slots:
        from dflash.pipeline.slots import SlotRing

        return SlotRing(count, nbytes)

    def _launch_apart(
        self,
        stage: Stage,
        function: Callable[..., Coroutine[Any, Any, None]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        ends: list[End],
    ) -> None:
        for place, end in enumerate(ends):
            end.place = place
        parcel = Parcel((self._on_thread_start, function, args, kwargs))
        with interrupts_later():
            if not self._workers:
                start_fork_server()
                # Python's own way to end children at exit asks them, and they do not listen.
                atexit.register(self._kill_workers)
            worker = self._fork(stage, parcel, ends)
            self._workers.append(worker)
            stage.stacks = lambda: _stacks_of(worker)
            worker.guard.start()
            self._launch(stage, self._stand_in(worker))

    def _fork(self, stage: Stage, parcel: Parcel, ends: list[End]) -> _Worker:
        mine, its = self._context.Pipe()
        stacks, its_stacks = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=wire.main, args=(its, its_stacks, stage.name, parcel), name=stage.name, daemon=True
        )
        try:
            with self._asking:
                process.start()
        except Exception as error:
            mine.close()
            stacks.close()
            raise DflashError(
                f"stage {stage.name} cannot be started in a process: {type(error).__name__}: {error}"
            ) from error
        finally:
            its.close()
            its_stacks.close()
        guard = threading.Thread(target=lambda: self._guard(worker), name=f"{stage.name} lives", daemon=True)
        worker = _Worker(stage, process, Wire(mine), stacks, ends, guard)
        return worker

    async def _stand_in(self, worker: _Worker) -> None:
        """Be the worker's stage: do on the channels what the worker says."""
        try:
            while True:
                kind, *rest = self._hear(worker)
                if kind == wire.WORK:
                    worker.stage.works_on(*rest)
                    worker.stage.progressed()
                elif kind == wire.BARRIER:
                    worker.stage.waits_at_barrier(*rest)
                    worker.stage.progressed()
                elif kind == wire.CLOSE:
                    worker.ends[rest[0]].close()
                elif kind == wire.RETURNED:
                    _count(worker, *rest)
                    return
                elif kind == wire.RAISED:
                    raise self._raised(worker, *rest)
                else:
                    await self._carry_out(worker, kind, rest)
        finally:
            worker.wire.shut()

    async def _carry_out(self, worker: _Worker, kind: str, rest: list[Any]) -> None:
        place, *item, spans = rest
        _count(worker, spans)
        end: Any = worker.ends[place]
        try:
            result = await (end.send(item[0], nbytes=item[1]) if kind == wire.SEND else end.receive())
        except (ChannelError, ItemTooLarge) as error:
            answer = (False, error)
        else:
            answer = (True, result)
        try:
            worker.wire.send(answer)
        except ConnectionLost:
            raise self._lost(worker) from None

    def _hear(self, worker: _Worker) -> tuple[Any, ...]:
        try:
            return worker.wire.receive()
        except ConnectionLost:
            raise self._lost(worker) from None

    def _raised(self, worker: _Worker, error: BaseException, notes: list[str], text: str) -> BaseException:
        if isinstance(error, PeerFailed):
            self._supervisor.wait_for_cause(_SECONDS_FOR_A_CAUSE)
        for note in notes:
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)
        error.__cause__ = RemoteTraceback(text)
        return error

    def _lost(self, worker: _Worker) -> BaseException:
        """What it means that a worker has hung up: after the end of the pipeline, nothing."""
        cause = self._supervisor.cause
        return self._death(worker) if cause is None else Aborted(cause)

    def _death(self, worker: _Worker) -> DflashError:
        worker.ended.wait(_SECONDS_TO_DIE)
        error = DflashError(f"its process died ({how_it_ended(worker.code)})")
        if worker.stage.work is not None:
            name_work(error, worker.stage.work)
        return error

    def _guard(self, worker: _Worker) -> None:
        """Wait for the end of a worker's process, and see to it that the worker's thread notices."""
        wait([worker.process.sentinel])
        with self._asking:
            worker.code = worker.process.exitcode
        worker.ended.set()
        # A process that it has left behind could hold its pipe open.
        worker.wire.shut()
        while worker.stage in self._supervisor.alive:
            if worker.stage.waits_for is not None:
                self._supervisor.abort(stage_error(worker.stage.name, self._death(worker)))
            time.sleep(_SECONDS_TO_LOOK_AGAIN)

    def _reap(self) -> None:
        interrupted = isinstance(self._supervisor.cause, KeyboardInterrupt)
        deadline = perf_counter() + (min(_SECONDS_AFTER_CTRL_C, self._grace) if interrupted else self._grace)
        try:
            for worker in self._workers:
                worker.wire.shut()
            # Whoever computes still may end by itself; a write to disk is not cut short.
            for worker in self._workers:
                worker.ended.wait(max(0.0, deadline - perf_counter()))
        finally:
            with interrupts_later():
                self._kill_workers()
                self._join_threads(max(deadline, perf_counter() + _SECONDS_TO_DIE))
                for worker in self._workers:
                    worker.guard.join(_SECONDS_TO_DIE)
                    worker.stacks.close()
                    worker.wire.close()
                    worker.process.close()

    def _kill_workers(self) -> None:
        atexit.unregister(self._kill_workers)
        left = [worker for worker in self._workers if not worker.ended.is_set()]
        for worker in left:
            worker.process.kill()
        for worker in left:
            worker.ended.wait(_SECONDS_TO_DIE)


def _count(worker: _Worker, spans: Spans) -> None:
    worker.stage.clock.move("copy", spans.copy)
    worker.stage.clock.move("barrier", spans.barrier)


def _stacks_of(worker: _Worker) -> str:
    """All stacks of a worker, by its fault handler, which runs whatever the worker's threads do."""
    text = b""
    with suppress(OSError):
        if not worker.ended.is_set():
            os.kill(worker.process.pid, signal.SIGUSR1)
        while worker.stacks.poll(_SECONDS_OF_SILENCE) and (more := os.read(worker.stacks.fileno(), 65536)):
            text += more
    return text.decode(errors="replace")
