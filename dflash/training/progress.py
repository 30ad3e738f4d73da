"""What a person sees while a drafter trains: a live view on a terminal, a line per interval elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live

from dflash.data.store import TokenStore
from dflash.pipeline import Telemetry
from dflash.training.live_view import LiveView, Recent
from dflash.training.meter import Interval
from dflash.training.step import EvaluationResult, SaveResult, WindowResult

_RECENT = 20
"""windows over which rates and the time left are taken"""
_SHOWN_SLOTS = (1, 2, 4, 8, 15)


class Progress:
    """Writes to stderr, so that stdout stays free.

    Args:
        total_windows: of the whole run, by its plans.
        first: the window that it begins with.
        console: where to write instead.
    """

    def __init__(
        self,
        total_windows: int,
        strategy: str,
        store: TokenStore,
        folder: Path,
        first: int = 0,
        console: Console | None = None,
    ) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._total = total_windows
        self._folder = folder
        self._recent: deque[WindowResult] = deque(maxlen=_RECENT + 1)
        self._stages: Recent | None = None
        self._started = perf_counter()
        self._first_loss: float | None = None
        self._held_out: EvaluationResult | None = None
        self._done = self._saved = first
        self._live = Live(
            console=self._console, get_renderable=self._view, refresh_per_second=4, transient=True
        )
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

    def begins(self, telemetry: Callable[[], Telemetry]) -> None:
        """The pipeline runs; ``telemetry`` tells where its time went until now."""
        self._stages = Recent(telemetry)

    def window(self, result: WindowResult) -> None:
        """A window was committed."""
        self._recent.append(result)
        self._done = result.window + 1
        if result.bad_rows:
            rows = ", ".join(map(str, result.bad_rows))
            self._console.print(f"window {result.window}: features not finite, left out: store rows {rows}")

    def interval(self, interval: Interval) -> None:
        """An interval is over."""
        if not self._console.is_terminal:
            rates = _rates(interval)
            self._print(f"{self._where()}  {rates}  bottleneck {interval.telemetry.bottleneck}{self._left()}")

    def evaluation(self, result: EvaluationResult) -> None:
        """The held-out samples were evaluated."""
        if result.loss is None:
            return
        self._held_out = result
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
        if self._first_loss is not None and self._held_out is not None:
            change = f", held-out loss {self._first_loss:.4f} -> {self._held_out.loss:.4f}"
        self._print(
            f"{self._done} windows in {_duration(seconds)}{change}; drafter in {self._folder / 'drafter'}"
        )

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def _view(self) -> LiveView:
        """Drawn four times a second, from a thread of its own."""
        recent = None if self._stages is None else self._stages.telemetry()
        return LiveView([self._where(), self._speed(recent)], recent)

    def _where(self) -> str:
        text = f"window {self._done:5d}/{self._total}"
        if not self._recent:
            return text
        last = self._recent[-1]
        loss = "-" if last.loss is None else f"{last.loss:.3f}"
        return f"{text}  epoch {last.epoch}  loss {loss}  accuracy {_slots(last.accuracy_B)}"

    def _speed(self, recent: Telemetry | None) -> str:
        windows = list(self._recent)
        if recent is None or len(windows) < 2:
            return "starting"
        seconds = windows[-1].committed_at - windows[0].committed_at
        real, padded, loss = (
            sum(getattr(window.counts, f"{of}_tokens") for window in windows[1:]) / seconds
            for of in ("real", "padded", "loss")
        )
        return f"{_tokens(real, padded, loss)}  bottleneck {recent.bottleneck}{self._left()}"

    def _left(self) -> str:
        if len(self._recent) < 2:
            return ""
        each = (self._recent[-1].committed_at - self._recent[0].committed_at) / (len(self._recent) - 1)
        return f"  {_duration((self._total - self._done) * each)} left"


def _rates(interval: Interval) -> str:
    counts = interval.counts
    kinds = (counts.real_tokens, counts.padded_tokens, counts.loss_tokens)
    return _tokens(*(tokens / interval.seconds for tokens in kinds))


def _tokens(real: float, padded: float, loss: float) -> str:
    efficiency = f"{real / padded:.3f}" if padded else "-"
    return f"{real:,.0f} real, {padded:,.0f} padded, {loss:,.0f} loss tok/s  padding efficiency {efficiency}"


def _slots(accuracy_B: list[float | None]) -> str:
    shown = [slot for slot in _SHOWN_SLOTS if slot < len(accuracy_B)]
    values = ["-" if accuracy_B[slot] is None else f"{accuracy_B[slot]:.2f}" for slot in shown]
    return f"{'/'.join(values)} at slots {'/'.join(map(str, shown))}"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours:02d} h"
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {whole % 60:02d} s" if minutes else f"{whole} s"
