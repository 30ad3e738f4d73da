"""The stages that ask for it in processes of their own, forked from a server that has torch loaded.

All others run on threads. On the caller's side each worker has a thread, which is the worker's stage to all
others: it takes the worker's messages and carries its operations out on the real channels. So nothing about
channels, deadlocks or telemetry is new here; what is new is that a worker can die.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import threading
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
from dflash.pipeline.operation import ChannelError, ItemTooLarge
from dflash.pipeline.stage import Stage, name_work, stage_error
from dflash.pipeline.wire import ConnectionLost, PeerFailed, Spans, Wire
from dflash.processes import how_it_ended, interrupts_later

if TYPE_CHECKING:
    from dflash.pipeline.slots import Slots

PRELOADED = ("torch", "dflash.pipeline.stages", "dflash.pipeline.wire")
_SECONDS_FOR_A_CAUSE = 2.0
"""How long a worker that names a peer waits for that peer's own failure to be noticed."""
_SECONDS_TO_STOP = 2.0
"""What SIGTERM is given before SIGKILL."""
_SECONDS_TO_LOOK_AGAIN = 0.1
"""Between two looks at a dead worker whose thread may have begun to wait in between."""


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
    died: bool = field(default=False)


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
        self._news, self._tell = self._context.Pipe(duplex=False)
        self._monitor = threading.Thread(target=self._watch_over_workers, name="dflash-monitor", daemon=True)

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
        with interrupts_later():
            mine, its = self._context.Pipe()
            stacks, its_stacks = self._context.Pipe(duplex=False)
            process = self._context.Process(
                target=wire.main,
                args=(its, its_stacks, stage.name, self._on_thread_start, function, args, kwargs),
                name=stage.name,
                daemon=True,
            )
            try:
                process.start()
            finally:
                its.close()
                its_stacks.close()
            worker = _Worker(stage, process, Wire(mine), stacks, ends)
            stage.stacks = lambda: _stacks_of(worker)
            self._workers.append(worker)
        if len(self._workers) == 1:
            self._monitor.start()
        self._tell.send_bytes(b"\0")
        self._launch(stage, self._stand_in(worker))

    async def _stand_in(self, worker: _Worker) -> None:
        """Be the worker's stage: do on the channels what the worker says."""
        try:
            while True:
                kind, *rest = self._hear(worker)
                if kind == wire.WORK:
                    worker.stage.works_on(*rest)
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
            worker.wire.close()

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
            raise self._death(worker) from None

    def _hear(self, worker: _Worker) -> tuple[Any, ...]:
        try:
            return worker.wire.receive()
        except ConnectionLost:
            raise self._death(worker) from None

    def _raised(self, worker: _Worker, error: BaseException, notes: list[str], text: str) -> BaseException:
        if isinstance(error, PeerFailed):
            self._supervisor.wait_for_cause(_SECONDS_FOR_A_CAUSE)
        for note in notes:
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)
        error.__cause__ = RemoteTraceback(text)
        return error

    def _death(self, worker: _Worker) -> DflashError:
        worker.process.join(_SECONDS_TO_STOP)
        error = DflashError(f"its process died ({how_it_ended(worker.process.exitcode)})")
        if worker.stage.work is not None:
            name_work(error, worker.stage.work)
        return error

    def _watch_over_workers(self) -> None:
        """End the pipeline for a worker that dies while its thread waits for a channel.

        A thread that waits for its worker notices by itself.
        """
        dead: list[_Worker] = []
        while True:
            living = [worker for worker in tuple(self._workers) if not worker.died]
            sentinels = {worker.process.sentinel: worker for worker in living}
            ready: list[Any] = wait([self._news, *sentinels], _SECONDS_TO_LOOK_AGAIN if dead else None)
            for one in ready:
                if one is self._news:
                    if self._news.recv_bytes() == b"\1":
                        return
                else:
                    sentinels[one].died = True
                    dead.append(sentinels[one])
            alive = self._supervisor.alive
            dead = [worker for worker in dead if worker.stage in alive]
            for worker in dead:
                if worker.stage.waits_for is not None:
                    self._supervisor.abort(stage_error(worker.stage.name, self._death(worker)))

    def _reap(self) -> None:
        deadline = perf_counter() + self._grace
        # Whoever computes still may end by itself; a write to disk is not cut short.
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - perf_counter()))
        for stop in ("terminate", "kill"):
            left = [worker.process for worker in self._workers if worker.process.is_alive()]
            for process in left:
                getattr(process, stop)()
            for process in left:
                process.join(_SECONDS_TO_STOP)
        super()._reap()
        if self._monitor.is_alive():
            self._tell.send_bytes(b"\1")
            self._monitor.join()
        for worker in self._workers:
            worker.stacks.close()
            worker.process.close()
        self._news.close()
        self._tell.close()


def _count(worker: _Worker, spans: Spans) -> None:
    worker.stage.clock.move("copy", spans.copy)
    worker.stage.clock.move("barrier", spans.barrier)


def _stacks_of(worker: _Worker) -> str:
    """All stacks of a worker, by its fault handler, which runs whatever the worker's threads do."""
    descriptor = worker.stacks.fileno()
    with suppress(OSError, ValueError):
        os.kill(worker.process.pid, signal.SIGUSR1)
    text = b""
    while select.select([descriptor], [], [], 0.5)[0]:
        more = os.read(descriptor, 65536)
        if not more:
            break
        text += more
    return text.decode(errors="replace")
