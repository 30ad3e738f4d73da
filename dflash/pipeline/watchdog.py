"""Names a stage that computes, or waits for something other than a channel, for too long."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import perf_counter_ns

from dflash.errors import StageError
from dflash.pipeline.stage import Stage


class Watchdog:
    """One thread, asleep until the next moment at which a stage could have been silent for ``limit`` seconds.

    A stage that waits for a channel is not silent: another one keeps it waiting, and that one is named. One
    that waits for the others of its group may do so for twice as long, so that whoever keeps it waiting is
    named before it; and one that has yet to touch a channel, ten times as long, as it loads a model. A
    silence is noticed after its limit and before twice that.
    """

    def __init__(
        self, limit: float, stages: Callable[[], Iterable[Stage]], report: Callable[[StageError], None]
    ) -> None:
        self._limit_ns = int(limit * 1e9)
        self._stages = stages
        self._report = report
        self._stop: SimpleQueue[None] = SimpleQueue()
        self._thread = threading.Thread(target=self._watch, name="dflash-watchdog", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, if there is one."""
        self._stop.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        longest = 0
        while True:
            with suppress(Empty):
                return self._stop.get(timeout=(self._limit_ns - longest) / 1e9)
            silence = {stage: self._silence(stage) for stage in self._stages() if stage.waits_for is None}
            longest = max(silence.values(), default=0)
            if longest >= self._limit_ns:
                stage = next(stage for stage, ns in silence.items() if ns == longest)
                return self._report(_stalled(stage, (perf_counter_ns() - stage.progress_ns) / 1e9))

    def _silence(self, stage: Stage) -> int:
        ns = perf_counter_ns() - stage.progress_ns
        if not stage.has_begun:
            return ns // 10
        return ns // 2 if stage.at_barrier else ns


def _stalled(stage: Stage, seconds: float) -> StageError:
    stacks = {ident: traceback.extract_stack(frame) for ident, frame in sys._current_frames().items()}
    work = "" if stage.work is None else f" while working on {stage.work}"
    # The thread of a stage with a process of its own only listens to that.
    own = stage.stacks is None and stage.thread in stacks
    here = stacks[stage.thread][-1] if own and stage.thread is not None else None
    where = "" if here is None else f": it is in {here.name} ({here.filename}:{here.lineno})"
    error = StageError(f"stage {stage.name} has made no progress for {seconds:.3g} s{work}{where}")
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, stack in stacks.items():
        error.add_note(f"thread {names.get(ident, ident)}:\n{''.join(stack.format()).rstrip()}")
    if stage.stacks is not None:
        error.add_note(f"the worker of {stage.name}:\n{stage.stacks()}")
    return error
