"""What a person sees while learning trials run: a line for each that has ended. On stderr."""

from __future__ import annotations

from dflash.bench.exchange import Failure
from dflash.bench.learning.exchange import Answer, LearningTrialRequest
from dflash.bench.metrics import number
from dflash.bench.status_line import StatusLine


class LearningProgress(StatusLine):
    """Counts trials as they end."""

    def __init__(self, total: int) -> None:
        super().__init__(f"{total} learning trials")
        self._total, self._done = total, 0

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
