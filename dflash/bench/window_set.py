"""The windows of a timed trial: few, fixed, and a true picture of the whole plan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dflash.batching import windows
from dflash.batching.composition import Composition, measure
from dflash.errors import TrialError
from dflash.training.schedule import EpochPlan

PADDING_TOLERANCE = 0.02
"""The set's padding efficiency may differ from the plan's by this share of it."""
ATTENTION_LENGTH = 1_000
"""Length at which attention costs as much as all else in a target as small as the sample's: with it, the
set has the plan's share of attention, where that of a large target would vanish beside its tokens."""
_PADDING_WEIGHT = 5.0
_PASSES = 5


def representative_windows(epoch: EpochPlan, count: int) -> list[int]:
    """``count`` windows of a plan that stand for all of it; all, if it has no more.

    The windows are cut into strata of equal size by mean sample length, and one is taken from each, such
    that the sums over the set come near to the sums over the strata's means: in padding efficiency above
    all, then in real tokens, padded tokens, work with attention, and samples. Consecutive or random windows
    would make the clock of a trial a lottery over lengths. The choice is a function of the plan, so all
    trials of an arm repeat it.

    They come from the middle of the lengths outwards: shorter and longer ones take turns, so that no length
    passes for a pace that changes on the way, and the extremes are last, which is where a warm-up begins.

    Raises:
        TrialError: the plan has no window, or no such set was found with the plan's padding efficiency.
    """
    composition = measure(epoch.plan, epoch.lengths)
    if not epoch.plan.windows:
        raise TrialError("the plan has no window: there are too few samples")
    traits_WF = _traits(epoch, composition)
    by_length = np.argsort(_mean_lengths(composition), kind="stable")
    strata = np.array_split(by_length, min(count, len(by_length)))
    wanted_F = np.sum([traits_WF[stratum].mean(axis=0) for stratum in strata], axis=0)
    chosen = [int(stratum[len(stratum) // 2]) for stratum in strata]
    for _ in range(_PASSES):
        for place, stratum in enumerate(strata):
            others_F = traits_WF[chosen].sum(axis=0) - traits_WF[chosen[place]]
            misses = np.square(others_F + traits_WF[stratum] - wanted_F).sum(axis=1)
            chosen[place] = int(stratum[np.argmin(misses)])
    _check_padding(composition, chosen)
    middle = (len(chosen) - 1) / 2
    return [chosen[place] for place in sorted(range(len(chosen)), key=lambda place: abs(place - middle))]


def _mean_lengths(composition: Composition) -> NDArray[np.float64]:
    return composition.window_real_tokens / np.maximum(composition.window_rows, 1)


def _traits(epoch: EpochPlan, composition: Composition) -> NDArray[np.float64]:
    """float64[W, 5], in units of the plan's means; the first is zero where the padding is the plan's."""
    edges = epoch.plan.window_offsets
    work = np.concatenate([[0], np.cumsum(windows.costs(epoch.plan, epoch.lengths, ATTENTION_LENGTH))])
    real, padded = composition.window_real_tokens, composition.window_padded_tokens
    traits = np.stack(
        [real, padded, work[edges[1:]] - work[edges[:-1]], composition.window_rows], axis=1
    ) / np.array([real.mean(), padded.mean(), work[-1] / len(real), composition.window_rows.mean()])
    padding = (real - composition.padding_efficiency * padded) / real.mean()
    return np.column_stack([_PADDING_WEIGHT * padding, traits])


def _check_padding(composition: Composition, chosen: list[int]) -> None:
    real, padded = composition.window_real_tokens[chosen], composition.window_padded_tokens[chosen]
    found, plans = real.sum() / padded.sum(), composition.padding_efficiency
    if abs(found / plans - 1) > PADDING_TOLERANCE:
        raise TrialError(
            f"{len(chosen)} windows have a padding efficiency of {found:.3f}, the plan has {plans:.3f}: "
            "measure more windows with --windows"
        )
