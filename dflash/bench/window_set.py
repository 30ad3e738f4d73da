"""The windows of a timed trial: few, fixed, and a true picture of the whole plan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dflash.batching.composition import Composition, measure
from dflash.errors import TrialError
from dflash.training.schedule import EpochPlan

PADDING_TOLERANCE = 0.02
"""The set's padding efficiency may differ from the plan's by this share of it."""


def representative_windows(epoch: EpochPlan, count: int) -> list[int]:
    """``count`` windows of a plan, ascending, that stand for all of it; all, if it has no more.

    The windows are cut into strata of equal size by mean sample length. From each stratum the one is taken
    that brings the sums over the set nearest to the sums over the strata's means, in real tokens, padded
    tokens, attention work and samples. Consecutive or random windows would make the clock of a trial a
    lottery over lengths. The choice is a function of the plan, so an arm's trials all repeat it.

    Raises:
        TrialError: the plan has no window, or no such set has the plan's padding efficiency.
    """
    composition = measure(epoch.plan, epoch.lengths)
    traits_WF = _traits(epoch, composition)
    if not len(traits_WF):
        raise TrialError("the plan has no window: there are too few samples")
    by_length = np.argsort(_mean_lengths(composition), kind="stable")
    chosen: list[int] = []
    wanted_F, have_F = np.zeros(traits_WF.shape[1]), np.zeros(traits_WF.shape[1])
    for stratum in np.array_split(by_length, min(count, len(by_length))):
        wanted_F = wanted_F + traits_WF[stratum].mean(axis=0)
        misses = np.square(have_F + traits_WF[stratum] - wanted_F).sum(axis=1)
        best = int(stratum[np.argmin(misses)])
        chosen.append(best)
        have_F = have_F + traits_WF[best]
    _check_padding(composition, chosen)
    return sorted(chosen)


def _mean_lengths(composition: Composition) -> NDArray[np.float64]:
    return composition.window_real_tokens / np.maximum(composition.window_rows, 1)


def _traits(epoch: EpochPlan, composition: Composition) -> NDArray[np.float64]:
    """float64[W, 4], each trait in units of its mean over the plan."""
    edges = epoch.plan.window_offsets
    attention = np.concatenate([[0], np.cumsum(composition.padded_tokens * composition.longest)])
    traits = np.stack(
        [
            composition.window_real_tokens,
            composition.window_padded_tokens,
            attention[edges[1:]] - attention[edges[:-1]],
            composition.window_rows,
        ],
        axis=1,
    ).astype(np.float64)
    return traits / np.maximum(traits.mean(axis=0), 1.0) if len(traits) else traits


def _check_padding(composition: Composition, chosen: list[int]) -> None:
    real, padded = composition.window_real_tokens[chosen], composition.window_padded_tokens[chosen]
    found, plans = real.sum() / padded.sum(), composition.padding_efficiency
    if abs(found / plans - 1) > PADDING_TOLERANCE:
        raise TrialError(
            f"{len(chosen)} windows have a padding efficiency of {found:.3f}, the plan has {plans:.3f}: "
            "measure more windows with --windows"
        )
