"""Jobs for other processes, which must be able to import them."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass

from dflash.data.workers import work_in_order
from dflash.errors import UsageError


@dataclass(frozen=True)
class Square:
    """Squares numbers; small ones take longer, so that results are ready out of order."""

    refused: tuple[int, ...] = ()
    killed: int | None = None
    refuses_to_open: bool = False

    def open(self):
        if self.refuses_to_open:
            raise UsageError("cannot be opened")
        return self._square

    def _square(self, number):
        time.sleep(0.002 * (10 - number % 10))
        if number in self.refused:
            raise UsageError(f"{number} is refused")
        if number == self.killed:
            os.kill(os.getpid(), signal.SIGKILL)
        return number**2, os.getpid()


@dataclass(frozen=True)
class Sleep:
    """Says which process it is in, and never ends."""

    def open(self):
        return self._sleep

    def _sleep(self, _chunk):
        print(os.getpid(), file=sys.stderr, flush=True)
        time.sleep(600)


if __name__ == "__main__":
    try:
        list(work_in_order(Sleep(), range(2), 2))
    except KeyboardInterrupt:
        sys.exit(130)
