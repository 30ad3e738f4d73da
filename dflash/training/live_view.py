"""A run on a terminal: a bar for every stage that shows where its time went, and how full the queues are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from dflash.pipeline import StageTelemetry, Telemetry
from dflash.pipeline.telemetry import kind_of

Signs = dict[str, tuple[str, str]]
"""Of each activity, what fills its part of a bar, and in which colour, which a terminal may not have."""

_SIGNS: Signs = {
    "busy": ("█", "green"),
    "copy": ("▓", "cyan"),
    "barrier": ("▒", "magenta"),
    "blocked": ("░", "yellow"),
    "starved": ("·", "bright_black"),
}
_ASCII: Signs = {
    "busy": ("#", "green"),
    "copy": ("=", "cyan"),
    "barrier": ("+", "magenta"),
    "blocked": ("-", "yellow"),
    "starved": (".", "bright_black"),
}
_WIDEST_BAR = 60
_LEAST_BAR = 5


@dataclass(frozen=True)
class LiveView:
    """One moment: lines of text, and below them the stages and queues over the last seconds.

    Never wider or higher than the terminal, so that it is drawn over in place: where there is no room for
    every worker, those of a kind share a bar, and where there is none for that, the lower lines are left out.
    """

    lines: Sequence[str]
    recent: Telemetry | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, console.size.height - 1
        signs = _ASCII if options.ascii_only else _SIGNS
        texts = [Text(line) for line in self.lines]
        if self.recent is not None:
            stages = self.recent.stages
            if len(texts) + len(stages) + 2 > height:
                stages = self.recent.groups
            texts += [*bars(stages, signs, width), _legend(signs), Text(_queues(self.recent))]
        for text in texts[:height]:
            text.truncate(width, overflow="crop" if options.ascii_only else "ellipsis")
            text.no_wrap = True
            yield text


def bars(stages: Sequence[StageTelemetry], signs: Signs, width: int) -> list[Text]:
    """A line for each stage: its name, a bar as long as there is room for, and the share that is busy."""
    names = max((len(stage.name) for stage in stages), default=0)
    room = min(_WIDEST_BAR, width - names - len("  100% busy"))
    return [_bar(stage, signs, names, room if room >= _LEAST_BAR else 0) for stage in stages]


def _bar(stage: StageTelemetry, signs: Signs, names: int, room: int) -> Text:
    text = Text(f"{stage.name:{names}} ")
    for activity, cells in _cells(stage, signs, room).items():
        sign, colour = signs[activity]
        text.append(sign * cells, style=colour)
    share = stage.busy / stage.wall if stage.wall else 0.0
    return text.append(f" {share:4.0%} busy")


def _cells(stage: StageTelemetry, signs: Signs, room: int) -> dict[str, int]:
    """Whole cells in proportion to the seconds, ``room`` of them together (largest remainders)."""
    exact = {
        activity: room * getattr(stage, activity) / stage.wall if stage.wall else 0.0 for activity in signs
    }
    cells = {activity: int(share) for activity, share in exact.items()}
    left = room - sum(cells.values()) if stage.wall else 0
    for activity in sorted(exact, key=lambda one: cells[one] - exact[one])[:left]:
        cells[activity] += 1
    return cells


def _legend(signs: Signs) -> Text:
    text = Text()
    for activity, (sign, colour) in signs.items():
        text.append(sign, style=colour).append(f" {activity}  ")
    return text


def _queues(telemetry: Telemetry) -> str:
    """Items now / the most that there ever were, of each kind of channel."""
    kinds: dict[str, list[str]] = {}
    for channel in telemetry.channels:
        kinds.setdefault(kind_of(channel.name), []).append(f"{channel.items}/{channel.peak_items}")
    return "queued now/peak: " + "  ".join(f"{kind} {' '.join(depths)}" for kind, depths in kinds.items())


class Recent:
    """What happened in the last seconds, from moments that it is shown one after the other."""

    def __init__(self, source: Callable[[], Telemetry], seconds: float = 10.0) -> None:
        self._source = source
        self._seconds = seconds
        self._moments: list[Telemetry] = []

    def telemetry(self) -> Telemetry:
        """From about ``seconds`` ago, or the start, until now."""
        now = self._source()
        start = now.seconds - self._seconds
        while len(self._moments) > 1 and self._moments[1].seconds <= start:
            del self._moments[0]
        self._moments.append(now)
        return now - self._moments[0] if len(self._moments) > 1 else now
