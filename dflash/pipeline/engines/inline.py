"""All stages in the caller's thread, one operation each in turn: for debugging, and to test interleavings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar

from dflash.pipeline.engine import Pipeline
from dflash.pipeline.operation import Operation, advance
from dflash.pipeline.stage import Stage, current_stage

T = TypeVar("T")


class _Task:
    __slots__ = ("operation", "stage", "steps")

    def __init__(self, stage: Stage, steps: Generator[Operation, Any, None]) -> None:
        self.stage = stage
        self.steps = steps
        self.operation: Operation | None = None


def _first(_: int) -> int:
    return 0


class InlinePipeline(Pipeline):
    """``choose(n)`` picks one of the n stages that can go on; by default the one that has waited longest."""

    def __init__(
        self, on_thread_start: Callable[[], None] | None = None, choose: Callable[[int], int] = _first
    ) -> None:
        super().__init__()
        self._choose = choose
        self._tasks: list[_Task] = []
        self._ready: list[_Task] = []
        if on_thread_start is not None:
            on_thread_start()

    def _launch(self, stage: Stage, coroutine: Coroutine[Any, Any, None]) -> None:
        task = _Task(stage, coroutine.__await__())
        self._tasks.append(task)
        self._ready.append(task)

    def _drive(self, awaitable: Awaitable[T]) -> T:
        steps = awaitable.__await__()
        while True:
            try:
                operation = advance(steps)
            except StopIteration as stop:
                result: T = stop.value
                return result
            if operation.start(_nothing):
                continue
            self._caller.wait(operation)
            self._supervisor.check_for_deadlock()
            while not operation.done:
                self._step(self._ready.pop(self._choose(len(self._ready))))
            self._caller.go_on()

    def _step(self, task: _Task) -> None:
        stage = task.stage
        stage.go_on()
        token = current_stage.set(stage)
        try:
            task.operation = operation = advance(task.steps)
        except StopIteration:
            self._end(task, None)
        except KeyboardInterrupt as interrupt:
            # Ctrl-C is the caller's, whichever stage it happens to hit.
            self._supervisor.abort(interrupt)
            self._end(task, None)
            raise
        except BaseException as error:
            self._end(task, error)
        else:
            stage.wait(operation)
            if operation.start(lambda: self._ready.append(task)):
                self._ready.append(task)
            else:
                self._supervisor.check_for_deadlock()
        finally:
            current_stage.reset(token)

    def _reap(self) -> None:
        # Unless the pipeline was aborted all have ended, and if it was every operation fails at once.
        for task in tuple(self._tasks):
            if task.operation is None or not task.operation.done:
                task.steps.close()
                self._end(task, None)
            while task in self._tasks:
                self._step(task)

    def _end(self, task: _Task, error: BaseException | None) -> None:
        self._tasks.remove(task)
        self._supervisor.ended(task.stage, error)


def _nothing() -> None:
    pass
