"""The windows of strategies at weights that stand still."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from dflash.batching import mixing
from dflash.batching.composition import measure
from dflash.bench.learning.design_effect import Samples, deal, design_effect, window_means
from dflash.bench.learning.exchange import FrozenPoint
from dflash.training import gradients
from dflash.training.frozen import SampleGradients
from dflash.training.schedule import EpochPlan

Int64 = NDArray[np.int64]

EXCHANGEABLE = (0.4, 2.5)
"""Variance ratios of length, of micro-batches and of windows, between which they pass as random draws.
Packed, first-fit and random plans of the sample lie between 0.6 and 1.8, whatever sorts anything above 9."""


def measure_frozen(found: SampleGradients, epoch: EpochPlan, seed: int) -> FrozenPoint:
    """All that the samples' gradients say of a plan of these very samples."""
    plan = epoch.plan
    batches = [plan.batch(number) for number in range(plan.batches)]
    windows = [np.concatenate([batches[batch] for batch in plan.window(w)]) for w in range(plan.windows)]
    of_gradients = Samples(found.sketches_SK, found.weights_S, found.tokens_S)
    of_losses = Samples(found.losses_S[:, None], found.weights_S, found.tokens_S)
    rng = np.random.default_rng(seed)
    size = epoch.request.window_size
    filled = [batch for batch in batches if found.weights_S[batch].sum() > 0]
    withheld = _not_exchangeable(epoch)
    scale = None if withheld else _noise_scale(of_gradients, filled, size)
    if withheld is None and scale is None:
        withheld = "the mean gradient is lost in its noise"
    return FrozenPoint(
        gradient=design_effect(of_gradients, windows, rng),
        loss_window=design_effect(of_losses, windows, rng),
        loss_micro_batch=design_effect(of_losses, batches, rng),
        diversity=_mean(gradients.diversity(g) for g in _sums(found, filled, size)),
        random_diversity=_mean(
            gradients.diversity(g) for g in _sums(found, deal(of_gradients, filled, rng), size)
        ),
        cosine=_mean(gradients.mean_cosine(g) for g in _sums(found, filled, size)),
        noise_scale=scale,
        noise_scale_withheld=withheld,
    )


def _sums(found: SampleGradients, batches: Sequence[Int64], size: int) -> list[NDArray[np.float64]]:
    """The gradient sums of the micro-batches of each window, as sketches."""
    sums = [found.sketches_SK[batch].sum(0, dtype=np.float64) for batch in batches]
    return [np.array(sums[start : start + size]) for start in range(0, len(sums) - size + 1, size)]


def _noise_scale(samples: Samples, batches: Sequence[Int64], size: int) -> float | None:
    whole = len(batches) // size * size
    if size < 2 or not whole:
        return None
    means = window_means(samples, batches[:whole])
    tokens = np.array([samples.tokens_S[batch].sum() for batch in batches[:whole]], np.float64)
    return gradients.noise_scale(means.reshape(-1, size, means.shape[1]), tokens.reshape(-1, size))


def _not_exchangeable(epoch: EpochPlan) -> str | None:
    """Why micro-batches are no independent draws, by their lengths alone; None where nothing says so."""
    plan, counts = epoch.plan, measure(epoch.plan, epoch.lengths)
    planned = epoch.lengths[plan.samples]
    some = counts.rows > 0
    if epoch.request.window_size < 2:
        return "a window has one micro-batch"
    for what, rows, tokens in (
        ("micro-batches", counts.rows[some], counts.real_tokens[some]),
        ("windows", counts.window_rows, counts.window_real_tokens),
    ):
        ratio = mixing.variance_ratio(planned, rows, tokens)
        if not EXCHANGEABLE[0] <= ratio <= EXCHANGEABLE[1]:
            return f"the mean lengths of its {what} vary {ratio:.1f} times as much as random draws"
    return None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
