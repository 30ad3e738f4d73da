"""Whether a trial's windows run at one pace once they are warm, as a throughput presumes.

Of benchmarks on virtual machines, fewer than half get there each time (Barrett et al., arXiv 1602.00602), and
a trial has a handful of windows. So windows that are only noisy pass: what is said must stand out from them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from dflash.bench.metrics import percent
from dflash.bench.statistics import FloatArray

DRIFT = 0.02
"""as a share of the pace: what may go unsaid"""

# One trial in a hundred whose windows are noise alone may be called unsteady. For the cut, Student's quantile
# would not do: MSER has chosen the quietest windows to compare with.
_ERROR = 0.01
_STANDARD_ERRORS = 8.0


def truncation(seconds: Sequence[float]) -> int:
    """How many of the first windows to cut, at most half: the d that minimises MSER.

    MSER(d) is the sum over i > d of (x_i - mean of those)^2, divided by (n - d)^2: the squared standard error
    of what is left (White, *An effective truncation heuristic for bias reduction in simulation output*,
    Simulation 69, 1997). Ties go to the smaller cut.
    """
    x = np.asarray(seconds, dtype=np.float64)
    return min(range(len(x) // 2 + 1), key=lambda cut: x[cut:].var() / (len(x) - cut)) if len(x) else 0


def unsteady(seconds: Sequence[float], warmup: int) -> str | None:
    """Why the windows after the first ``warmup`` are not at a steady pace, in words; None if they may be.

    ``seconds`` float[n] are of all windows in their order, per unit of work where windows differ. Either MSER
    would cut windows that were measured, and these stand out from the rest; or the measured windows drift, by
    the slope of Theil and Sen and the exact test of Mann and Kendall.

    Raises ValueError on values that are not finite and above zero.
    """
    x = np.asarray(seconds, dtype=np.float64)
    if not (np.isfinite(x) & (x > 0)).all():
        raise ValueError("expected finite times above zero")
    reason = _cold(x, warmup, truncation(seconds)) or _drifting(x[warmup:])
    return None if reason is None else f"no steady state: {reason}"


def _cold(x: FloatArray, warmup: int, cut: int) -> str | None:
    early, rest = x[warmup:cut], x[cut:]
    if not len(early) or len(rest) < 2:
        return None
    pace = float(rest.mean())
    change = float(early.mean()) - pace
    error = float(rest.std(ddof=1)) * math.sqrt(1 / len(early) + 1 / len(rest))
    share_of_all = len(early) / len(x[warmup:])
    if abs(change) <= _STANDARD_ERRORS * error or abs(change) / pace * share_of_all <= DRIFT:
        return None
    size = f"{percent(abs(change) / pace, 0)} {'longer' if change > 0 else 'less'}"
    return f"{len(early)} windows after {warmup} of warm-up took {size} than the rest"


def _drifting(x: FloatArray) -> str | None:
    if len(x) < 2:
        return None
    drift = _theil_sen(x) * (len(x) - 1) / float(np.median(x))
    if abs(drift) <= DRIFT or _mann_kendall(x) > _ERROR:
        return None
    return f"windows got {percent(abs(drift), 0)} {'slower' if drift > 0 else 'faster'} on the way"


def _theil_sen(x: FloatArray) -> float:
    """The median slope between two values, per step."""
    return float(np.median([(x[j] - x[i]) / (j - i) for i, j in combinations(range(len(x)), 2)]))


def _mann_kendall(x: FloatArray) -> float:
    """Two-sided p of "no trend": how often a random order has as few inversions, or as few of the others."""
    later_is_less = sum(x[j] < x[i] for i, j in combinations(range(len(x)), 2))
    later_is_more = sum(x[j] > x[i] for i, j in combinations(range(len(x)), 2))
    # Ties count for neither side, that is against a trend.
    fewest = len(x) * (len(x) - 1) // 2 - int(max(later_is_less, later_is_more))
    return min(1.0, 2 * float(_inversions(len(x))[: fewest + 1].sum()))


@lru_cache(maxsize=32)
def _inversions(n: int) -> NDArray[np.float64]:
    """P(inversions = k) of a random order of n, float64[n(n-1)/2 + 1]: a sum of uniform draws from 0..i-1."""
    probability = np.ones(1)
    for i in range(2, n + 1):
        probability = np.convolve(probability, np.full(i, 1 / i))
    return probability
