"""Loss spikes: sudden rises of the loss or the gradient norm that the steps before do not explain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dflash.errors import NonFiniteError

HISTORY = 32
LEAST_HISTORY = 16
THRESHOLD = 6.0
"""robust deviations"""
REFRACTORY = 8
"""steps after a spike that belong to it"""
LOSS_RISE, NORM_RISE = 1.05, 3.0
"""over what was expected; a rise below that is no spike however steady the steps before it were"""
SPIKE_P = 0.01


def spikes(values: ArrayLike, rise: float = LOSS_RISE) -> list[int]:
    """The steps at which a series float[T] spikes.

    The steps before, at most HISTORY and at least LEAST_HISTORY of them, are detrended by a robust line (the
    median slope of all pairs; Sen, J. Amer. Statist. Assoc. 63, 1968), which says what to expect. A spike
    exceeds that by THRESHOLD deviations, 1.4826 median absolute residuals and a thousandth of the value
    expected, and is more than ``rise`` times of it.

    Raises:
        NonFiniteError: a value is not finite; that is worse than a spike and never one.
    """
    x = np.asarray(values, dtype=np.float64)
    wrong = np.flatnonzero(~np.isfinite(x))
    if len(wrong):
        raise NonFiniteError(f"step {wrong[0]} is {x[wrong[0]]}")
    found: list[int] = []
    for step in range(LEAST_HISTORY, len(x)):
        if found and step <= found[-1] + REFRACTORY:
            continue
        expected, deviation = _forecast(x[max(0, step - HISTORY) : step])
        scale = deviation + 1e-3 * abs(expected)
        if x[step] - expected > THRESHOLD * scale and x[step] > rise * expected:
            found.append(step)
    return found


def _forecast(history: NDArray[np.float64]) -> tuple[float, float]:
    """What the next value should be, and the robust deviation of values from the line."""
    at = np.arange(len(history))
    first, second = np.triu_indices(len(history), 1)
    slope = float(np.median((history[second] - history[first]) / (second - first)))
    levels = history - slope * at
    level = float(np.median(levels))
    return level + slope * len(history), 1.4826 * float(np.median(np.abs(levels - level)))


def spikes_of_run(losses: Sequence[float | None], norms: Sequence[float]) -> int:
    """Spikes of a run's windows in the loss or in the gradient norm before clipping, each counted once.

    Windows without weight have no loss and take no step; they are left out.
    """
    steps = [(loss, norm) for loss, norm in zip(losses, norms, strict=True) if loss is not None]
    at = sorted({*spikes([loss for loss, _ in steps]), *spikes([norm for _, norm in steps], NORM_RISE)})
    return sum(1 for number, step in enumerate(at) if not number or step - at[number - 1] > REFRACTORY)


@dataclass(frozen=True)
class SpikeComparison:
    """Spikes of two arms, by seed. ``worse``: more seeds have some than chance explains."""

    reference: int
    candidate: int
    p: float
    worse: bool


def compare_spikes(reference: Sequence[int], candidate: Sequence[int]) -> SpikeComparison:
    """Fisher's exact test, one-sided, of the seeds with a spike; and at least two spikes more.

    The seeds are the replicates: steps of one run depend on each other, and are never counted as if not.
    """
    with_reference, with_candidate = sum(n > 0 for n in reference), sum(n > 0 for n in candidate)
    p = fisher(with_candidate, len(candidate), with_reference, len(reference))
    more = sum(candidate) - sum(reference)
    return SpikeComparison(sum(reference), sum(candidate), p, p < SPIKE_P and more >= 2)


def fisher(hits: int, of: int, other_hits: int, other_of: int) -> float:
    """One-sided p of Fisher's exact test: so many ``hits`` or more, given the sum of hits of both."""
    total = hits + other_hits
    ways = math.comb(of + other_of, total)
    most = min(of, total)
    return sum(math.comb(of, k) * math.comb(other_of, total - k) for k in range(hits, most + 1)) / ways
