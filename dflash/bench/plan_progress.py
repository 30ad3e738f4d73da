"""What a person sees while plans are made: what is being planned, and what took long. On stderr."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console

from dflash.bench import results
from dflash.bench.metrics import number
from dflash.plugin_manager import Arm

_LONG_SECONDS = 2.0


class PlanProgress:
    """A line that names the strategy at hand, on a terminal; elsewhere a line for each slow one."""

    def __init__(self, arms: int) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._status = self._console.status("reading lengths")
        self._total, self._done, self._start = arms, 0, 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._status.stop()

    def started(self, arm: Arm) -> None:
        """An arm begins to plan."""
        self._start = time.perf_counter()
        self._status.update(f"planning {self._done + 1}/{self._total}  {arm.name}")

    def ended(self, arm: results.Arm) -> None:
        """An arm has been planned and measured, or has failed."""
        self._done += 1
        seconds = time.perf_counter() - self._start
        if seconds > _LONG_SECONDS and not self._console.is_terminal:
            self._console.print(
                f"plan {self._done}/{self._total}  {arm.strategy}  {number(seconds)} s", soft_wrap=True
            )
