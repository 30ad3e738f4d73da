"""What a person sees while plans are made: what is being planned, and what took long. On stderr."""

from __future__ import annotations

import time

from dflash.bench import results
from dflash.bench.metrics import number
from dflash.bench.status_line import StatusLine
from dflash.plugin_manager import Arm

_LONG_SECONDS = 2.0


class PlanProgress(StatusLine):
    """A line that names the strategy at hand, on a terminal; elsewhere a line for each slow one."""

    def __init__(self, arms: int) -> None:
        super().__init__("reading lengths")
        self._total, self._done, self._start = arms, 0, 0.0

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
