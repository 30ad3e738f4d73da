"""Each stage on a thread of its own."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from queue import SimpleQueue
from time import perf_counter
from typing import Any, TypeVar

from dflash.pipeline.engine import Pipeline
from dflash.pipeline.operation import Operation, advance
from dflash.pipeline.stage import Stage, current_stage
from dflash.pipeline.watchdog import Watchdog

T = TypeVar("T")


class ThreadPipeline(Pipeline):
    """See ``open_engine`` for the arguments."""

    def __init__(
        self,
        on_thread_start: Callable[[], None] | None = None,
        *,
        grace: float = 10.0,
        stall_after: float = 600.0,
    ) -> None:
        super().__init__()
        self._on_thread_start = on_thread_start
        self._grace = grace
        self._threads: list[threading.Thread] = []
        self._watchdog = Watchdog(stall_after, lambda: self._supervisor.alive, self._supervisor.abort)

    def _launch(self, stage: Stage, coroutine: Coroutine[Any, Any, None]) -> None:
        thread = threading.Thread(target=self._main, args=(stage, coroutine), name=stage.name, daemon=True)
        if not self._threads:
            self._watchdog.start()
        thread.start()
        self._threads.append(thread)

    def _main(self, stage: Stage, coroutine: Coroutine[Any, Any, None]) -> None:
        current_stage.set(stage)
        stage.thread = threading.get_ident()
        stage.go_on()
        try:
            if self._on_thread_start is not None:
                self._on_thread_start()
            self._drive_stage(stage, coroutine)
        except BaseException as error:
            coroutine.close()
            self._supervisor.ended(stage, error)
        else:
            self._supervisor.ended(stage, None)

    def _drive(self, awaitable: Awaitable[T]) -> T:
        return self._drive_stage(self._caller, awaitable)

    def _drive_stage(self, stage: Stage, awaitable: Awaitable[T]) -> T:
        steps = awaitable.__await__()
        while True:
            try:
                operation = advance(steps)
            except StopIteration as stop:
                result: T = stop.value
                return result
            self._perform(stage, operation)

    def _perform(self, stage: Stage, operation: Operation) -> None:
        # Of all things to wait on, this one may be told twice, and is not Python code that Ctrl-C could leave
        # with a lock held.
        done: SimpleQueue[None] = SimpleQueue()
        stage.has_begun = True
        try:
            if operation.start(partial(done.put, None)):
                stage.progressed()
                return
            stage.wait(operation)
            self._supervisor.check_for_deadlock()
            done.get()
            stage.go_on()
        except BaseException as interrupt:
            # The item may have been handed over already, and nothing can go on without it.
            self._supervisor.abort(interrupt)
            raise

    def _reap(self) -> None:
        self._join_threads(perf_counter() + self._grace)

    def _join_threads(self, deadline: float) -> None:
        self._watchdog.stop()
        for thread in self._threads:
            thread.join(max(0.0, deadline - perf_counter()))
        if left := [thread.name for thread in self._threads if thread.is_alive()]:
            warnings.warn(
                f"left behind as daemon threads, not ended within {self._grace:g} s: {', '.join(left)}",
                RuntimeWarning,
                stacklevel=4,
            )
