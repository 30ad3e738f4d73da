"""A pipeline: stages joined by channels, and the promise that they end together.

    with open_engine("thread") as pipeline:
        batches_tx, batches_rx = pipeline.channel("batches", items=4)
        features_tx, features_rx = pipeline.channel("features", items=2)
        pipeline.start("feed", feed_stage, batches_tx, plan)
        for i in range(targets):
            pipeline.start(f"target-{i}", target_stage, batches_rx.clone(), features_tx.clone(), model)
        batches_rx.close()
        features_tx.close()
        for features in pipeline.results(features_rx):
            ...

A stage is an ``async def`` function that awaits channel operations and nothing else. It owns the ends among
its arguments (in lists and tuples too): they are closed when it returns. Every other end is the caller's.

- A stage that raises ends all of them. The first failure is raised in the caller, as a ``StageError`` that
  names the stage, has the exception as its cause, and keeps its exit code.
- Leaving the block closes the caller's ends and waits for the stages; a stage that then sends to nobody has
  ended well. Before that, ``BrokenChannel`` is a failure like any other.
- Leaving it by an exception, Ctrl-C included, aborts them, waits for at most the grace time, and lets it
  pass.
- If everyone waits for everyone else, the caller gets a ``StageError`` that says who waits for what.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from dflash.pipeline.channel import CALLER, End, Receiver, Sender, channel
from dflash.pipeline.operation import Aborted, EndOfChannel
from dflash.pipeline.stage import Stage, current_stage
from dflash.pipeline.supervisor import Supervisor
from dflash.pipeline.telemetry import Telemetry

if TYPE_CHECKING:
    from dflash.pipeline.slots import Slots

T = TypeVar("T")
P = ParamSpec("P")


class Pipeline(ABC):
    """What all engines share; each of them drives the stages in its own way. Made by ``open_engine``."""

    has_processes = False
    """Whether a stage that is started apart has a process of its own."""

    def __init__(self) -> None:
        self._opened = perf_counter()
        self._caller = Stage(CALLER, "busy")
        self._stages: list[Stage] = []
        self._supervisor = Supervisor(self._caller)
        # Every stage holds a sender of this channel: it ends when the last of them does.
        self._alive, self._all_ended = channel("stages alive", items=1, holder="pipeline")
        self._supervisor.add_channel(self._alive.core)

    def channel(
        self, name: str, *, items: int, bytes: int | None = None
    ) -> tuple[Sender[Any], Receiver[Any]]:
        """A channel of this pipeline, see ``dflash.pipeline.channel``; its two ends are the caller's."""
        if any(core.name == name for core in self._supervisor.channels):
            raise ValueError(f"there is a channel {name!r} already")
        sender, receiver = channel(name, items=items, bytes=bytes)
        self._supervisor.add_channel(sender.core)
        return sender, receiver

    def slots(self, count: int, *, nbytes: int) -> Slots:
        """``count`` slots of ``nbytes`` bytes through which one stage hands tensors to another.

        Raises ``UsageError`` where stages have processes and there is not so much memory for them to share.
        """
        from dflash.pipeline.slots import LocalSlots

        return LocalSlots()

    def start(
        self,
        name: str,
        function: Callable[P, Coroutine[Any, Any, None]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Start the stage ``function(*args, **kwargs)``; the ends among its arguments become its own.

        ``name`` must be new, and an end must not be another stage's: give each stage a ``clone()``.
        """
        self._start(name, function, args, kwargs, apart=False)

    def start_apart(
        self,
        name: str,
        function: Callable[P, Coroutine[Any, Any, None]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """:meth:`start` a stage that computes: an engine that has processes gives it one of its own.

        So that every engine can run it, ``function`` is of a module and the arguments can be pickled.
        """
        self._start(name, function, args, kwargs, apart=True)

    def _start(
        self,
        name: str,
        function: Callable[..., Coroutine[Any, Any, None]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        apart: bool,
    ) -> None:
        if name == CALLER or any(stage.name == name for stage in self._stages):
            raise ValueError(f"there is a stage {name} already")
        ends = list(_ends([*args, *kwargs.values()]))
        for end in ends:
            if end.holder != CALLER:
                raise ValueError(
                    f"an end of channel {end.core.name!r} belongs to {end.holder}: clone it for {name}"
                )
        stage = Stage(name, "starved")
        for end in (*ends, self._alive.clone()):
            end.holder = name
        self._stages.append(stage)
        self._supervisor.add_stage(stage)
        if apart:
            self._launch_apart(stage, function, args, kwargs, ends)
        else:
            self._launch(stage, function(*args, **kwargs))

    def run(self, awaitable: Awaitable[T]) -> T:
        """Await, on the caller's thread: ``pipeline.run(sender.send(item))``. Raises ``StageError``."""
        try:
            return self._drive(awaitable)
        except Aborted as aborted:
            raise aborted.cause from aborted.cause.__cause__

    def results(self, source: AsyncIterable[T]) -> Iterator[T]:
        """The items of a receiver (or of ``in_order``), on the caller's thread. Raises ``StageError``."""
        items = aiter(source)
        while True:
            try:
                item = self.run(anext(items))
            except StopAsyncIteration:
                return
            yield item

    def snapshot(self) -> Telemetry:
        """Where the time went until now; may be asked for at any time, also after the end."""
        return Telemetry(
            stages=tuple(stage.clock.read() for stage in (*self._stages, self._caller)),
            channels=tuple(core.statistics() for core in self._supervisor.channels[1:]),
            seconds=perf_counter() - self._opened,
        )

    def __enter__(self) -> Self:
        self._token = current_stage.set(self._caller)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._leave()
            else:
                self._supervisor.abort(error)
        except BaseException as interrupt:
            self._supervisor.abort(interrupt)
            raise
        finally:
            self._reap()
            self._caller.clock.stop()
            current_stage.reset(self._token)
        if error is None and self._supervisor.cause is not None:
            raise self._supervisor.cause from self._supervisor.cause.__cause__

    def _leave(self) -> None:
        self._supervisor.leaving = True
        self._supervisor.close_ends_of(self._caller)
        self._alive.close()
        with suppress(EndOfChannel, Aborted):
            self._drive(self._all_ended.receive())

    @abstractmethod
    def _launch(self, stage: Stage, coroutine: Coroutine[Any, Any, None]) -> None:
        """Begin to drive a stage, and tell the supervisor when it has ended."""

    def _launch_apart(
        self,
        stage: Stage,
        function: Callable[..., Coroutine[Any, Any, None]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        ends: list[End],
    ) -> None:
        """Begin to drive a stage that may have a process of its own."""
        self._launch(stage, function(*args, **kwargs))

    @abstractmethod
    def _drive(self, awaitable: Awaitable[T]) -> T:
        """Drive ``awaitable`` for the caller. What interrupts its waiting aborts the pipeline."""

    @abstractmethod
    def _reap(self) -> None:
        """Bring every stage to its end: all have ended or are aborted."""


def _ends(arguments: Iterable[object]) -> Iterator[End]:
    for argument in arguments:
        if isinstance(argument, End):
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from _ends(argument)
