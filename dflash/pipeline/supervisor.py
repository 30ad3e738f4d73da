"""Who is alive, who waits for whom, and the first thing that went wrong.

A channel changes only by what a stage or the caller does. So if all of them wait for operations that are not
done, none ever will be: the deadlock is certain at that moment, and is reported then, on every engine.
"""

from __future__ import annotations

from threading import Event, Lock

from dflash.errors import StageError
from dflash.pipeline.core import Core
from dflash.pipeline.operation import Aborted, BrokenChannel
from dflash.pipeline.stage import Stage, stage_error


class Supervisor:
    """Of one pipeline. ``cause`` is the first failure: a ``StageError``, or what made the caller leave."""

    def __init__(self, caller: Stage) -> None:
        self.cause: BaseException | None = None
        self.leaving = False
        """Whether the caller wants nothing any more, so that sending into the void is how a stage ends."""
        self.channels: list[Core] = []
        self._lock = Lock()
        self._caller = caller
        self._alive: list[Stage] = []
        self._has_cause = Event()

    @property
    def alive(self) -> tuple[Stage, ...]:
        """The stages that have started and not ended."""
        with self._lock:
            return tuple(self._alive)

    def add_channel(self, core: Core) -> None:
        """Watch over ``core``, and abort it if the pipeline has ended."""
        with self._lock:
            self.channels.append(core)
            cause = self.cause
        if cause is not None:
            core.abort(cause)

    def add_stage(self, stage: Stage) -> None:
        """Watch over ``stage``."""
        with self._lock:
            self._alive.append(stage)

    def ended(self, stage: Stage, error: BaseException | None) -> None:
        """``stage`` has returned or raised ``error``; its ends are closed."""
        if error is not None and not self._is_quiet(error):
            # Before its ends close: whoever would see them closed must see the cause instead.
            self.abort(stage_error(stage.name, error))
        self.close_ends_of(stage)
        stage.clock.stop()
        with self._lock:
            self._alive.remove(stage)
        self.check_for_deadlock()

    def close_ends_of(self, stage: Stage) -> None:
        """Close every end that ``stage`` still holds."""
        for core in tuple(self.channels):
            for end in core.held_by(stage.name):
                end.close()

    def abort(self, cause: BaseException) -> None:
        """End everything because of ``cause``, unless something came first."""
        with self._lock:
            if self.cause is None:
                self.cause = cause
                self._has_cause.set()
            channels, cause = tuple(self.channels), self.cause
        for core in channels:
            core.abort(cause)

    def wait_for_cause(self, seconds: float) -> None:
        """Let someone else's failure come first, if there is one."""
        self._has_cause.wait(seconds)

    def _is_quiet(self, error: BaseException) -> bool:
        return isinstance(error, Aborted) or (self.leaving and isinstance(error, BrokenChannel))

    def check_for_deadlock(self) -> None:
        """To be called by whoever has just begun to wait: the last one to do so finds everyone waiting."""
        with self._lock:
            if self.cause is not None:
                return
            waits = {stage.name: stage.waits_for for stage in (*self._alive, self._caller)}
        pending = {name: operation for name, operation in waits.items() if operation and not operation.done}
        # While this looked at one, another could still have finished it and then waited itself. Those that
        # were pending above, and are when looked at again, were all pending at once in between.
        if len(pending) < len(waits) or any(operation.done for operation in pending.values()):
            return
        everyone = "; ".join(f"{name} waits {operation}" for name, operation in pending.items())
        self.abort(
            StageError(
                f"deadlock, everyone waits: {everyone}. Close the ends that you do not use, or add depth"
            )
        )
