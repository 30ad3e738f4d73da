"""A trial's figures, from what was seen of its run."""

from __future__ import annotations

import math
import os
import resource
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dflash.batching.composition import measure, measure_composition
from dflash.bench.exchange import WindowFigures
from dflash.bench.flops import Sizes, target_flops
from dflash.bench.machine import Load
from dflash.pipeline import Telemetry
from dflash.pipeline.work import Counts
from dflash.training.schedule import EpochPlan
from dflash.training.step import WindowResult

ACTIVITIES = ("busy", "starved", "blocked", "copy", "barrier")


@dataclass(frozen=True)
class Reading:
    """What was read when a window's commit reached the caller."""

    telemetry: Telemetry
    cpu_seconds: float
    load: Load


@dataclass(frozen=True)
class Measured:
    """The measured windows and the readings at their two edges."""

    results: Sequence[WindowResult]
    seconds: Sequence[float]
    """of each of them, from commit to commit"""
    start: Reading
    end: Reading
    held_out_loss: float | None

    @property
    def wall_seconds(self) -> float:
        return math.fsum(self.seconds)

    @property
    def counts(self) -> Counts:
        return sum((window.counts for window in self.results), start=Counts())

    @property
    def telemetry(self) -> Telemetry:
        return self.end.telemetry - self.start.telemetry

    @property
    def steal(self) -> Load:
        return self.end.load.since(self.start.load)


def of_the_clock(measured: Measured) -> dict[str, float | None]:
    """Rates, times and shares of them."""
    seconds, counts = measured.wall_seconds, measured.counts
    return {
        "tok_s": counts.real_tokens / seconds,
        "padded_tok_s": counts.padded_tokens / seconds,
        "loss_tok_s": counts.loss_tokens / seconds,
        "target_utilisation": _busy(measured.telemetry, "target"),
        "drafter_utilisation": _busy(measured.telemetry, "drafter"),
        "window_seconds": seconds / len(measured.results),
        "wall_seconds": seconds,
        "cpu_seconds": measured.end.cpu_seconds - measured.start.cpu_seconds,
    }


def of_the_work(measured: Measured, block_size: int, drafter_flops: int) -> dict[str, float | None]:
    """Counts, and what was learned; the same on every machine, or nearly so.

    ``drafter_flops`` are those of the measured windows.
    """
    counts = measured.counts
    diversities = [w.gradient_diversity for w in measured.results if w.gradient_diversity is not None]
    return {
        "real_tokens": float(counts.real_tokens),
        "padded_tokens": float(counts.padded_tokens),
        "loss_tokens": float(counts.loss_tokens),
        "anchor_slots": float(counts.anchor_slots),
        "anchor_slot_efficiency": _share(counts.loss_tokens, counts.anchor_slots * (block_size - 1)),
        "label_coverage": _share(counts.covered_tokens, counts.supervised_tokens),
        "drafter_flops_per_token": _share(drafter_flops, counts.real_tokens),
        "final_loss": measured.held_out_loss,
        "gradient_diversity": statistics.fmean(diversities) if diversities else None,
    }


def of_the_plan(epoch: EpochPlan, sizes: Sizes) -> dict[str, float | None]:
    """Measures of the whole epoch's plan, and what the target computes for it; None where undefined."""
    measures = measure_composition(epoch.plan, epoch.lengths, epoch.request).metrics
    counted = measure(epoch.plan, epoch.lengths)
    operations = target_flops(sizes, int(counted.padded_tokens.sum()), int(measures["squared_length_sum"]))
    return {
        **{name: None if math.isnan(value) else value for name, value in measures.items()},
        "target_flops_per_token": _share(operations, int(counted.real_tokens.sum())),
    }


def stage_shares(interval: Telemetry) -> dict[str, dict[str, float]]:
    """Of each stage, the share of its wall time in each activity."""
    return {
        stage.name: {activity: getattr(stage, activity) / stage.wall for activity in ACTIVITIES}
        for stage in interval.stages
        if stage.wall
    }


def window_figures(measured: Measured) -> list[WindowFigures]:
    """Of each measured window."""
    return [
        WindowFigures(
            seconds=seconds,
            real_tokens=window.counts.real_tokens,
            padded_tokens=window.counts.padded_tokens,
            loss_tokens=window.counts.loss_tokens,
            loss=window.loss,
            gradient_norm=window.gradient_norm,
        )
        for window, seconds in zip(measured.results, measured.seconds, strict=True)
    ]


def steal_share(measured: Measured) -> float | None:
    """CPU seconds stolen over those that all cores of the machine had, between the two readings."""
    stolen = measured.steal.steal_seconds
    available = measured.telemetry.seconds * (os.cpu_count() or 1)
    return None if stolen is None else stolen / available


def of_the_memory() -> dict[str, float | None]:
    """Peaks until now; a figure of GPUs is that of the one that held most."""
    on_gpu = None
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        gpus = range(torch.cuda.device_count())
        on_gpu = float(max(torch.cuda.max_memory_allocated(gpu) for gpu in gpus))
    return {
        "peak_memory_bytes": float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024),
        "peak_gpu_memory_bytes": on_gpu,
    }


def _share(part: int | None, whole: int) -> float | None:
    return part / whole if whole and part is not None else None


def _busy(interval: Telemetry, kind: str) -> float:
    """Mean busy share of the workers of a kind; a difference of floats may say a hair more than one."""
    return statistics.fmean(
        min(1.0, stage.busy / stage.wall) for stage in interval.stages if stage.name.startswith(f"{kind}-")
    )
