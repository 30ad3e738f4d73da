"""How much a label of a short or a long sample counts under a plan.

The loss of a window is a sum over its labels divided by the sum of their weights, so within a window all
labels count alike. Between windows they do not: every window takes one optimizer step, and a label of a
window with few labels moves the weights more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class LengthWeights:
    """Mean weight of the labels of the shortest and the longest third of the samples; 1 is fair."""

    short: float
    long: float


def length_weights(
    lengths: Int64, labels: NDArray[np.float64] | Int64, windows: Sequence[Int64]
) -> LengthWeights:
    """What one label of a third of the samples counts in an epoch, over what a label counts on average.

    A label of window t has weight 1 / L_t, L_t being the window's labels, and fair is W / sum_t L_t.

    Args:
        lengths, labels: int64[n] and [n], tokens and labels (or their weights) of each sample.
        windows: rows of the samples of each window; those without a label take no step.
    """
    fair = sum(1 for window in windows if labels[window].sum() > 0) / sum(
        float(labels[window].sum()) for window in windows
    )
    counts = np.zeros(len(lengths))
    for window in windows:
        total = float(labels[window].sum())
        counts[window] = 1 / total / fair if total > 0 else 0.0
    planned = np.concatenate(windows)
    low, high = np.quantile(lengths[planned], [1 / 3, 2 / 3])

    def mean(chosen: Int64) -> float:
        return float(np.average(counts[chosen], weights=labels[chosen])) if labels[chosen].sum() else 1.0

    return LengthWeights(mean(planned[lengths[planned] <= low]), mean(planned[lengths[planned] >= high]))
