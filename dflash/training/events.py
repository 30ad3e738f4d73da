"""What happens in a run, as observers are told and as files keep it: see ``dflash.hookspecs.Event``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from dflash.training.meter import Interval
from dflash.training.step import EvaluationResult, Result, WindowResult

Reason = Literal["finished", "interrupted", "failed"]
Event = dict[str, Any]


def run_start(folder: Path, windows: int, first: int, manifest: dict[str, Any]) -> Event:
    """A run of ``windows`` windows begins with window ``first``."""
    return {
        "type": "run_start",
        "folder": str(folder),
        "windows": windows,
        "first": first,
        "manifest": manifest,
    }


def of_result(result: Result) -> Event:
    """A window, an evaluation or a checkpoint."""
    if isinstance(result, WindowResult):
        return {"type": "window", **asdict(result)}
    if isinstance(result, EvaluationResult):
        return {"type": "evaluation", **asdict(result)}
    return {"type": "checkpoint", "window": result.window, "path": str(result.path)}


def of_interval(interval: Interval) -> Event:
    """An interval of telemetry."""
    return {"type": "telemetry", **_told(interval)}


def run_end(reason: Reason, message: str | None, whole: Interval | None) -> Event:
    """The end; ``whole`` is the run as one interval, None where no work was done."""
    told = {} if whole is None else _told(whole)
    return {"type": "run_end", "reason": reason, "message": message, **told}


def _told(interval: Interval) -> Event:
    counts, telemetry, seconds = interval.counts, interval.telemetry, interval.seconds
    return {
        "until": interval.until,
        "seconds": seconds,
        "done": interval.done,
        "windows": interval.windows,
        "loss": interval.loss,
        "real_tokens_per_second": counts.real_tokens / seconds,
        "padded_tokens_per_second": counts.padded_tokens / seconds,
        "loss_tokens_per_second": counts.loss_tokens / seconds,
        "padding_efficiency": interval.padding_efficiency,
        "counts": asdict(counts),
        "bottleneck": telemetry.bottleneck,
        "stages": [asdict(stage) for stage in telemetry.stages],
        "channels": [asdict(channel) for channel in telemetry.channels],
    }
