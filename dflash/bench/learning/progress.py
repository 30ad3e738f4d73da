"""What a person sees while learning trials run: a line for each that has ended. On stderr."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status

from dflash.bench.exchange import Failure
from dflash.bench.learning.exchange import LearningTrial, LearningTrialRequest
from dflash.bench.metrics import number


class LearningProgress:
    """Counts trials as they end."""

    def __init__(self, total: int) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._total, self._done = total, 0
        self._status = Status(f"{total} learning trials", console=self._console)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._status.stop()

    def ended(self, request: LearningTrialRequest, answer: LearningTrial | Failure) -> None:
        """A trial has ended, one way or the other."""
        self._done += 1
        if isinstance(answer, Failure):
            text = f"failed: {answer.message}"
        else:
            text = f"held-out loss {number(answer.curve[-1].loss, 3)}, {number(answer.seconds, 0)} s"
        seed = request.config.training.seed
        self._console.print(
            f"trial {self._done}/{self._total}  {request.strategy}, seed {seed}  {text}", soft_wrap=True
        )
