"""What a person sees while trials run: a bar on a terminal, a line per trial elsewhere. On stderr."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from dflash.bench.metrics import number
from dflash.bench.pairs import Slot
from dflash.bench.results import Trial


class TrialProgress:
    """Counts trials as they start and end."""

    def __init__(self, rounds: int, arms: int) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._total = rounds * 2 * (arms - 1) if arms > 1 else rounds
        self._done = 0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("trials,"),
            TimeElapsedColumn(),
            TextColumn("gone,"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task("preparing", total=self._total)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def started(self, slot: Slot) -> None:
        """A trial begins."""
        self._bar.update(self._task, description=slot.arm)

    def ended(self, trial: Trial) -> None:
        """A trial has ended, one way or the other."""
        self._done += 1
        self._bar.update(self._task, completed=self._done)
        rate = trial.metrics.get("tok_s")
        text = f"{number(rate)} real tok/s" if rate else f"failed: {trial.error}"
        if not self._console.is_terminal or not trial.ok:
            self._console.print(f"trial {self._done}/{self._total}  {trial.arm}  {text}", soft_wrap=True)
