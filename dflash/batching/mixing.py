"""How well a plan mixes lengths, and how much of it changes from epoch to epoch."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dflash.batching.plan import BatchPlan, IntArray
from dflash.batching.segments import segment_of
from dflash.errors import PlanError

_QUANTILES = 8


def variance_ratio(lengths: IntArray, window_rows: IntArray, window_tokens: IntArray) -> float:
    """Variance of the windows' mean length over that of independent draws: 1 is random.

    lengths: int64[N], those of all planned samples; window_rows and window_tokens: int64[W], samples (at
    least one) and real tokens of each window.

    The mean of n independent draws has variance s^2 / n, s^2 being that of the lengths. So each window's
    squared deviation from the mean m of all lengths is multiplied by its own n, and the ratio is
    sum_w n_w (mean_w - m)^2 / ((W - 1) s^2) with s^2 = sum_i (l_i - m)^2 / (N - 1): the mean squares
    between windows and in all, as in a one-way analysis of variance. Its expectation is exactly 1 if the
    samples are dealt at random to windows of given sizes, however unequal.

    NaN for fewer than two windows, and if all lengths are equal.
    """
    if len(window_rows) < 2:
        return math.nan
    mean = int(window_tokens.sum()) / len(lengths)
    total = float(np.square(lengths - mean).sum()) / (len(lengths) - 1)
    between = float((window_rows * np.square(window_tokens / window_rows - mean)).sum())
    return between / (len(window_rows) - 1) / total if total else math.nan


def lag_1_autocorrelation(values: npt.NDArray[np.float64]) -> float:
    """sum_t (x_t - m)(x_t+1 - m) / sum_t (x_t - m)^2 of a series float64[W]; NaN if it is constant."""
    deviations = values - values.mean() if len(values) else values
    total = float(deviations @ deviations)
    return float(deviations[:-1] @ deviations[1:]) / total if total else math.nan


def length_entropy(lengths: IntArray, *offsets: IntArray) -> list[float]:
    """Mean entropy, in bits, of the lengths within the segments of each of several offsets.

    lengths: int64[N], in the order of the plan. They are told apart by the eight quantiles of the whole, so
    that 0 is the entropy of equal lengths and 3 that of random draws (less if many lengths are equal);
    more is more even than random. Each segment counts by its samples; NaN if there is none.

    A histogram of n samples has too little entropy. It is estimated as sum_k (n_k / n)(psi(n) - psi(n_k)),
    whose bias falls exponentially in n (Zhang, Neural Computation 24(5), 2012; in the form of Schürmann,
    Neural Computation 27(10), 2015).
    """
    if not len(lengths):
        return [math.nan] * len(offsets)
    edges = np.sort(lengths)[len(lengths) * np.arange(1, _QUANTILES) // _QUANTILES]
    quantile = np.searchsorted(edges, lengths, side="right")
    return [_entropy(quantile, some) for some in offsets]


def _entropy(quantile: IntArray, offsets: IntArray) -> float:
    rows = np.diff(offsets)
    cells = np.bincount(segment_of(offsets) * _QUANTILES + quantile)
    # n psi(n) for n = 0, 1, 2, ...; Euler's constant cancels.
    harmonic = np.concatenate([[0.0, 0.0], np.cumsum(1 / np.arange(1, rows.max()))])
    weighted = np.arange(len(harmonic)) * harmonic
    return float(weighted[rows].sum() - weighted[cells].sum()) / len(quantile) / math.log(2)


def mate_overlap(plan: BatchPlan, other: BatchPlan) -> float:
    """Pairs of samples that share a micro-batch in both plans / in either: 1 for frozen micro-batches.

    Exact: samples with the same two micro-batches are each other's mates twice. NaN if no micro-batch has
    two samples. Raises PlanError for plans of different samples.
    """
    if not np.array_equal(plan.ids, other.ids):
        raise PlanError("the plans of two epochs can be compared only if they are for the same store rows")
    first, second = _batch_of_sample(plan), _batch_of_sample(other)
    in_both = (first >= 0) & (second >= 0)
    cells = first[in_both] * other.batches + second[in_both]
    cells.sort()
    ends = np.flatnonzero(np.diff(cells, append=-1))
    twice = _pairs(np.diff(ends, prepend=-1))
    either = _pairs(np.diff(plan.batch_offsets)) + _pairs(np.diff(other.batch_offsets)) - twice
    return twice / either if either else math.nan


def _batch_of_sample(plan: BatchPlan) -> IntArray:
    """int64[n], -1 for a sample that is not planned."""
    batch = np.full(len(plan.ids), -1)
    batch[plan.samples] = segment_of(plan.batch_offsets)
    return batch


def _pairs(sizes: IntArray) -> int:
    return int((sizes * (sizes - 1) // 2).sum())
