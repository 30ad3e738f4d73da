"""A long plan's time from a few stretches of it, with a bound on what that misses."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dflash.simulation.pipeline import Seconds, Timeline, Topology, simulate
from dflash.simulation.shapes import FloatArray

MOST_MICRO_BATCHES = 16_000
"""simulated of one plan; about a second on one core"""
SPANS = 16
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """Seconds of the whole plan."""

    seconds: float
    error: float
    """half of the 95 % interval of ``seconds``, as a share of it; 0 where every window was simulated"""
    windows: int
    """simulated and counted"""
    timelines: list[Timeline]
    weights: list[float]
    """counted seconds of each timeline"""


def estimate(topology: Topology, seconds: Seconds, most: int = MOST_MICRO_BATCHES) -> Estimate:
    """Simulate all windows where there are few, else contiguous spans, spread evenly over the plan.

    Each span starts with an empty pipeline and has windows to fill it that are not counted. What the spans
    took is held against a bound that is known for every window, its busiest stage's own seconds, and the
    ratio carries over to the rest: a ratio estimator with the variance of block means (Cochran 1977,
    chapter 6).
    """
    size = topology.window_size
    windows = len(seconds.target) // size
    warmup = 4 + 2 * -(-topology.slots // topology.accumulation)
    counted = max(warmup, most // (SPANS * size) - warmup)
    if windows * size <= most or windows <= SPANS * (counted + warmup):
        whole = simulate(topology, seconds)
        everything = float(whole.window_ends[-1]) if windows else 0.0
        return Estimate(everything, 0.0, windows, [whole], [everything])
    bounds = window_bounds(topology, seconds)
    stratum = windows / SPANS
    # Each span is in the middle of its stratum.
    starts = [round(stratum * (one + 0.5) - (counted + warmup) / 2) for one in range(SPANS)]
    took: list[float] = []
    bound: list[float] = []
    timelines: list[Timeline] = []
    for start in starts:
        span = _part(seconds, slice(start * size, (start + warmup + counted) * size))
        timelines.append(simulate(topology, span, warmup))
        ends = timelines[-1].window_ends
        took.append(float(ends[-1] - ends[warmup - 1]))
        bound.append(float(bounds[start + warmup : start + warmup + counted].sum()))
    ratio, error = _ratio(np.array(took), np.array(bound), SPANS * counted / windows)
    return Estimate(ratio * float(bounds.sum()), error, SPANS * counted, timelines, took)


def window_bounds(topology: Topology, seconds: Seconds) -> FloatArray:
    """float64[w]: seconds that each window takes at least if its busiest stage never waits."""
    load = np.zeros_like(seconds.target) if seconds.load is None else seconds.load
    targets, drafters, loads = (
        part.reshape(-1, topology.accumulation, topology.drafters)
        for part in (seconds.target, seconds.drafter, load)
    )
    stages = [
        targets.sum(axis=(1, 2)) / topology.targets,
        loads.sum(axis=(1, 2)) / topology.prefetch,
        drafters.sum(axis=1).max(axis=1) + seconds.commit,
    ]
    if topology.cores is not None:
        stages.append((targets + drafters + loads).sum(axis=(1, 2)) / topology.cores)
    bounds: FloatArray = np.max(stages, axis=0)
    return bounds


def _part(seconds: Seconds, which: slice) -> Seconds:
    return replace(
        seconds,
        target=seconds.target[which],
        drafter=seconds.drafter[which],
        load=None if seconds.load is None else seconds.load[which],
        transfer=None if seconds.transfer is None else seconds.transfer[which],
    )


def _ratio(took: FloatArray, bound: FloatArray, sampled: float) -> tuple[float, float]:
    from scipy.stats import t

    ratio = float(took.sum() / bound.sum())
    misses = took - ratio * bound
    deviation = float(np.sqrt((misses**2).sum() / (len(took) - 1) / len(took) * (1 - sampled)))
    return ratio, float(t.ppf(0.5 + LEVEL / 2, len(took) - 1)) * deviation / float(took.mean())
