"""What a person sees while trials run: a bar on a terminal, a line per trial elsewhere. On stderr."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dflash.bench.exchange import Failure
from dflash.bench.learning.exchange import Answer, LearningTrialRequest
from dflash.bench.learning.progress import told
from dflash.bench.metrics import number, percent
from dflash.bench.pairs import Slot
from dflash.bench.results import Trial
from dflash.bench.tables import clean


class TrialProgress:
    """Follows a run through its trials and looks.

    ``pairs`` is the most that the run may need; gates that are decided earlier end it earlier. ``level`` -1
    shows failures alone, 1 adds what each trial had to say.
    """

    def __init__(self, pairs: int, level: int = 0, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._pairs = pairs
        self._level = level
        self._done = 0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[pair]}"),
            TimeElapsedColumn(),
            TextColumn("gone,"),
            TimeRemainingColumn(),
            TextColumn("left at most{task.fields[look]}"),
            console=self._console,
            transient=True,
            disable=level < 0 or not self._console.is_terminal,
        )
        self._task = self._bar.add_task("preparing", total=2 * pairs, pair="", look="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def started(self, slot: Slot) -> None:
        """A trial begins."""
        # Pairs that are left out are repeated, so there may be more than were foreseen.
        self._pairs = max(self._pairs, slot.pair + 1)
        self._bar.update(
            self._task,
            description=clean(slot.arm).plain,
            pair=f"pair {slot.pair + 1} of {self._pairs}",
            total=2 * self._pairs,
            completed=2 * slot.pair + slot.slot,
        )

    def ended(self, trial: Trial) -> None:
        """A trial has ended, one way or the other."""
        self._done += 1
        self._bar.update(self._task, completed=2 * trial.pair + trial.slot + 1)
        if not trial.ok:
            self._say(f"{self._place(trial)}  failed: {trial.error}")
        elif self._level > 0 or (self._level == 0 and not self._console.is_terminal):
            rate = trial.metrics.get("tok_s") or 0.0
            self._say(f"{self._place(trial)}  {number(rate)} real tok/s{self._more(trial)}")

    def looked(self, pairs: int, next_look: int | None, reason: str) -> None:
        """The gates were judged after ``pairs`` pairs of each comparison, or the rest was planned."""
        following = "" if next_look is None else f", next look at {next_look} pairs"
        self._bar.update(self._task, look=following)
        if self._level >= 0:
            self._say(f"after {pairs} pairs{following}: {reason}")

    def learned(self, request: LearningTrialRequest, answer: Answer) -> None:
        """A learning trial has ended, one way or the other."""
        self._bar.update(self._task, description="learning", pair="", look="")
        if self._level >= 0 or isinstance(answer, Failure):
            self._say(f"learning  {told(request, answer)}")

    def _place(self, trial: Trial) -> str:
        return f"trial {self._done}, pair {trial.pair + 1} of {self._pairs}  {trial.arm}"

    def _more(self, trial: Trial) -> str:
        if self._level < 1:
            return ""
        said = list(trial.notes)
        if trial.steal_share:
            said.append(f"{percent(trial.steal_share, 1)} of the CPU time was stolen")
        if trial.throttled:
            said.append(f"GPUs were held back: {', '.join(trial.throttled)}")
        return "".join(f"; {one}" for one in said)

    def _say(self, line: str) -> None:
        self._console.print(clean(line), soft_wrap=True)
