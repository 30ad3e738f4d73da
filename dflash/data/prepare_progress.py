"""What a person sees while a store is prepared: a live line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from time import perf_counter
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from dflash.data.prepare import Counts
from dflash.data.tokenisation import Done

_SECONDS_BETWEEN_LINES = 10.0
"""where the output is no terminal"""


class PrepareProgress:
    """Writes to stderr, so that stdout stays free.

    Rates and the time left are of what this start has done: chunks that an earlier one has left take no time.
    """

    def __init__(self, *, generated: bool) -> None:
        self.rows_kept = 0
        """rows that are done, whether in this start or an earlier one"""
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._generated = generated
        self._started = self._printed_at = perf_counter()
        self._rows = self._tokens = self._reused = 0
        self._first_share = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def advanced(self, done: Done, counts: Counts, share: float) -> None:
        """Some more rows are done."""
        now = perf_counter()
        self.rows_kept = counts.rows
        if done.reused:
            self._reused += len(done.outcomes)
            self._first_share, self._started = share, now
            return
        if not self._rows and self._reused:
            self._print(f"going on after {self._reused:,} rows that an earlier start has left")
        self._rows += len(done.outcomes)
        self._tokens += sum(
            outcome.loss_mask.count(1) if self._generated else outcome.kept_tokens
            for outcome in done.outcomes
        )
        line = self._line(counts, share, now - self._started)
        if self._console.is_terminal:
            self._live.update(Text(line, overflow="ellipsis", no_wrap=True))
        elif now - self._printed_at > _SECONDS_BETWEEN_LINES:
            self._print(line)
            self._printed_at = now

    def finished(self) -> str:
        """How long it took and how fast it went."""
        seconds = perf_counter() - self._started
        made = "tokens generated" if self._generated else "tokens"
        return f"{self._rows:,} rows in {_duration(seconds)}, {self._tokens / seconds:,.0f} {made}/s"

    def _line(self, counts: Counts, share: float, seconds: float) -> str:
        made = "generated tok/s" if self._generated else "tok/s"
        rates = f"{self._rows / seconds:,.0f} rows/s, {self._tokens / seconds:,.0f} {made}"
        left = seconds * (1 - share) / (share - self._first_share) if share > self._first_share else 0.0
        return (
            f"{counts.rows:,} rows ({share:.0%}), {counts.samples:,} samples, {rates}, {_duration(left)} left"
        )

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
