"""What a person sees while learning trials run: a line for each that has ended. On stderr."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status

from dflash.bench.exchange import Failure
from dflash.bench.learning.exchange import Answer, LearningTrialRequest
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

    def ended(self, request: LearningTrialRequest, answer: Answer) -> None:
        """A trial has ended, one way or the other."""
        self._done += 1
        self._console.print(f"trial {self._done}/{self._total}  {told(request, answer)}", soft_wrap=True)


def told(request: LearningTrialRequest, answer: Answer) -> str:
    """What became of a learning trial, on one line."""
    if isinstance(answer, Failure):
        text = f"failed: {answer.message}"
    else:
        text = f"held-out loss {number(answer.curve[-1].loss, 3)}, {number(answer.seconds, 0)} s"
    return f"{request.strategy}, seed {request.config.training.seed}  {text}"
