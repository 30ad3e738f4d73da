"""What a person sees while a drafter trains: one live line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from dflash.data.store import TokenStore
from dflash.pipeline import Telemetry
from dflash.training.step import EvaluationResult, SaveResult, WindowResult

_RECENT = 20
"""windows over which the rate is averaged"""
_SECONDS_BETWEEN_LINES = 10.0
"""where the output is no terminal"""
_SHOWN_SLOTS = (1, 2, 4, 8, 15)


class Progress:
    """Writes to stderr, so that stdout stays free."""

    def __init__(
        self, total_windows: int, strategy: str, store: TokenStore, folder: Path, first: int = 0
    ) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._total = total_windows
        self._folder = folder
        self._recent: deque[WindowResult] = deque(maxlen=_RECENT + 1)
        self._started = perf_counter()
        self._printed_at = self._started
        self._first_loss: float | None = None
        self._loss: float | None = None
        self._done = self._saved = first
        tokens = int(store.lengths.sum())
        self._console.print(
            f"{len(store):,} samples, {tokens:,} tokens, fingerprint {store.fingerprint[:12]}; "
            f"{total_windows} windows of {strategy} into {folder}"
        )

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def window(self, result: WindowResult, telemetry: Telemetry) -> None:
        """A window was committed."""
        self._recent.append(result)
        self._done = result.window + 1
        if result.bad_rows:
            rows = ", ".join(map(str, result.bad_rows))
            self._console.print(f"window {result.window}: features not finite, left out: store rows {rows}")
        if self._console.is_terminal:
            self._live.update(Text(self._line(result, telemetry), overflow="ellipsis", no_wrap=True))
        elif perf_counter() - self._printed_at > _SECONDS_BETWEEN_LINES:
            self._print(self._line(result, telemetry))
            self._printed_at = perf_counter()

    def evaluation(self, result: EvaluationResult) -> None:
        """The held-out samples were evaluated."""
        if result.loss is None:
            return
        self._loss = result.loss
        self._first_loss = result.loss if self._first_loss is None else self._first_loss
        slots = _slots(result.accuracy_B)
        self._print(f"window {result.window:5d}  held-out loss {result.loss:.4f}  accuracy {slots}")

    def saved(self, result: SaveResult) -> None:
        """A checkpoint is being written."""
        self._saved = result.window

    def interrupted(self, drafter: Path | None) -> None:
        """Ctrl-C or SIGTERM. ``drafter`` is where the weights of the last checkpoint are."""
        if drafter is None:
            self._print(f"interrupted after {self._done} windows, before the first checkpoint")
            return
        self._print(
            f"interrupted; the weights after {self._saved} windows are in {drafter}; "
            f"go on with: dflash train --resume {self._folder}"
        )

    def finished(self) -> None:
        """All windows are trained and the weights written."""
        seconds = perf_counter() - self._started
        change = ""
        if self._first_loss is not None and self._loss is not None:
            change = f", held-out loss {self._first_loss:.4f} -> {self._loss:.4f}"
        self._print(
            f"{self._done} windows in {_duration(seconds)}{change}; drafter in {self._folder / 'drafter'}"
        )

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def _line(self, result: WindowResult, telemetry: Telemetry) -> str:
        recent = list(self._recent)
        seconds = recent[-1].committed_at - recent[0].committed_at
        measured = recent[1:]
        real = sum(window.counts.real_tokens for window in measured)
        padded = sum(window.counts.padded_tokens for window in measured)
        loss = "-" if result.loss is None else f"{result.loss:.3f}"
        line = (
            f"window {result.window + 1:5d}/{self._total}  loss {loss}  accuracy {_slots(result.accuracy_B)}"
        )
        if not (seconds and padded):
            return line
        left = (self._total - self._done) * seconds / len(measured)
        return (
            f"{line}  {real / seconds:,.0f} real tok/s  padding efficiency {real / padded:.3f}  "
            f"bottleneck {telemetry.bottleneck}  {_duration(left)} left"
        )


def _slots(accuracy_B: list[float | None]) -> str:
    shown = [slot for slot in _SHOWN_SLOTS if slot < len(accuracy_B)]
    values = ["-" if accuracy_B[slot] is None else f"{accuracy_B[slot]:.2f}" for slot in shown]
    return f"{'/'.join(values)} at slots {'/'.join(map(str, shown))}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
