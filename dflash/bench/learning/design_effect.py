"""The design effect: how much noisier a strategy's windows are than random ones of the same samples.

Survey statistics' word (Kish, *Survey Sampling*, 1965) for the variance under a sampling design over that of
simple random sampling of the same size. Here the design is a plan, and what is estimated is a mean over a
window's labels: the gradient that an optimizer steps on, or the loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
FloatArray = NDArray[np.float32] | NDArray[np.float64]

RANDOM_PLANS = 16
"""The samples are dealt again so often; their variance is the reference, and its own noise is counted."""


@dataclass(frozen=True, eq=False)
class Samples:
    """S samples at frozen weights: what they add to a window's sum, and to the weight that divides it."""

    values_SK: FloatArray
    weights_S: Float64
    tokens_S: Int64


@dataclass(frozen=True, eq=False)
class Effect:
    """A design effect of W windows. ``influence_W`` sums to zero; see :func:`combine`."""

    log: float
    influence_W: Float64
    """what each window adds to ``log``, in first order, times W"""
    log_variance: float
    """of ``log``, from drawing a few random plans where all were meant"""
    lag_1_cosine: float | None
    """mean of <s_t - s, s_t+1 - s> over the mean of |s_t - s|^2: near 1 where neighbours are alike"""
    successive: float | None
    """the design effect that differences of neighbours alone would give"""

    @property
    def windows(self) -> int:
        return len(self.influence_W)


def design_effect(samples: Samples, windows: Sequence[Int64], rng: np.random.Generator) -> Effect | None:
    """Compare a plan with the plans that deal its samples at random, to windows of as many real tokens.

    ``windows`` are places in ``samples``, in the plan's order. With s_t the sum of window t's values over the
    sum of its weights, N_t its tokens and s the mean of the s_t weighted by N_t,

        V = sum_t N_t |s_t - s|^2 / (W - 1),

    a variance times tokens, as in an analysis of variance, so that unequal windows count as they should. With
    equal windows it is the mean of N/2 |s_t - s_u|^2 over all pairs. Differences of *successive* windows
    alone would not see a plan that drifts slowly through the lengths; they are told beside it, and so is the
    lag-1 cosine.

    The reference is the mean V of random plans with the very same N_t, up to half a sample.

    None for fewer than three windows with weight, or where nothing varies.
    """
    planned = [window for window in windows if samples.weights_S[window].sum() > 0]
    if len(planned) < 3:
        return None
    own = _between(samples, planned)
    dealt = [_between(samples, deal(samples, planned, rng)).total for _ in range(RANDOM_PLANS)]
    reference = float(np.mean(dealt))
    if not (own.total > 0 and reference > 0):
        return None
    expected_W = _expected(samples, planned)
    influence_W = own.parts_W / own.parts_W.mean() - expected_W / expected_W.mean()
    return Effect(
        log=math.log(own.total / reference),
        influence_W=influence_W,
        log_variance=float(np.var(dealt, ddof=1)) / RANDOM_PLANS / reference**2,
        lag_1_cosine=own.lag_1_cosine,
        successive=own.successive / reference,
    )


@dataclass(frozen=True, eq=False)
class _Variance:
    total: float
    parts_W: Float64
    lag_1_cosine: float
    successive: float


def _between(samples: Samples, windows: Sequence[Int64]) -> _Variance:
    means_WK = window_means(samples, windows)
    tokens_W = np.array([samples.tokens_S[window].sum() for window in windows], np.float64)
    deviations_WK = means_WK - tokens_W @ means_WK / tokens_W.sum()
    squares_W = np.square(deviations_WK).sum(1)
    products = float((deviations_WK[:-1] * deviations_WK[1:]).sum(1).mean())
    steps_W = np.square(np.diff(means_WK, axis=0)).sum(1) / 2
    parts_W = tokens_W * squares_W
    return _Variance(
        total=float(parts_W.sum() / (len(windows) - 1)),
        parts_W=parts_W,
        lag_1_cosine=products / float(squares_W.mean()) if squares_W.any() else 0.0,
        successive=float((steps_W * (tokens_W[:-1] + tokens_W[1:]) / 2).mean()),
    )


def window_means(samples: Samples, windows: Sequence[Int64]) -> Float64:
    """Each window's sum of values over its sum of weights: float64[W, K]."""
    # A product with zeros and ones: the fastest way to add rows of a large matrix.
    chosen_WS = np.zeros((len(windows), len(samples.tokens_S)), samples.values_SK.dtype)
    for number, window in enumerate(windows):
        chosen_WS[number, window] = 1
    sums_WK = (chosen_WS @ samples.values_SK).astype(np.float64)
    return np.asarray(sums_WK / (chosen_WS @ samples.weights_S)[:, None])


def deal(samples: Samples, windows: Sequence[Int64], rng: np.random.Generator) -> list[Int64]:
    """The samples of ``windows`` at random, in windows of their real tokens in random order."""
    shuffled = rng.permutation(np.concatenate(windows))
    tokens_W = rng.permutation([samples.tokens_S[window].sum() for window in windows])
    reached = np.cumsum(samples.tokens_S[shuffled])
    middles = reached - samples.tokens_S[shuffled] / 2
    cuts = np.searchsorted(middles, np.cumsum(tokens_W)[:-1])
    dealt = np.split(shuffled, cuts)
    return [window for window in dealt if len(window) and samples.weights_S[window].sum() > 0]


def _expected(samples: Samples, windows: Sequence[Int64]) -> Float64:
    """What each window's samples add to the variance of random plans, to first order: |g_i - w_i G|^2."""
    chosen = np.concatenate(windows)
    mean_K = samples.values_SK[chosen].sum(0, dtype=np.float64) / samples.weights_S[chosen].sum()
    residuals_SK = samples.values_SK - np.outer(samples.weights_S, mean_K).astype(samples.values_SK.dtype)
    squares_S = np.square(residuals_SK).sum(1, dtype=np.float64)
    return np.array([squares_S[window].sum() for window in windows])


@dataclass(frozen=True)
class Estimate:
    """A value with one-sided bounds, and what they rest on."""

    value: float
    low: float | None
    high: float | None
    windows: int
    seeds: int
    basis: str
    """``seeds`` or ``windows``: over which the bounds are taken"""


def combine(by_seed: Sequence[Sequence[Effect]], level: float) -> Estimate | None:
    """One design effect from those of several seeds, each at several points of a run.

    The value is the geometric mean. All points of a seed have the same windows, so a window's influence is
    averaged over the points first. With six seeds and more the bounds are those of the exact signed-rank test
    over seeds. With fewer they come from the windows: the variance of ``log`` is the sum of squared
    influences / W (W - 1), the infinitesimal jackknife (Efron and Stein, Ann. Statist. 9, 1981), and
    Student's quantile has as many degrees of freedom as windows.
    """
    from dflash.bench.statistics import hodges_lehmann, least_pairs

    seeds = [points for points in by_seed if points]
    if not seeds:
        return None
    logs = [float(np.mean([effect.log for effect in points])) for points in seeds]
    windows = sum(points[0].windows for points in seeds)
    if len(seeds) >= least_pairs(level):
        found = hodges_lehmann(logs, level)
        low, high = (None if bound is None else math.exp(bound) for bound in (found.low, found.high))
        return Estimate(math.exp(found.estimate), low, high, windows, len(seeds), "seeds")
    from scipy.special import stdtrit

    variance = sum(_variance(points) for points in seeds) / len(seeds) ** 2
    log = float(np.mean(logs))
    reach = float(stdtrit(windows - len(seeds), level)) * math.sqrt(variance)
    return Estimate(
        math.exp(log), math.exp(log - reach), math.exp(log + reach), windows, len(seeds), "windows"
    )


def _variance(points: Sequence[Effect]) -> float:
    influence_W = np.mean([effect.influence_W for effect in points], axis=0)
    of_plans = float(np.mean([effect.log_variance for effect in points])) / len(points)
    n = len(influence_W)
    return float(np.square(influence_W).sum()) / (n * (n - 1)) + of_plans
