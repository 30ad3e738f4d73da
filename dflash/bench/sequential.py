"""When a run that gates is looked at, and what its first pairs say about how many more it needs.

Whoever looks after every pair and stops at the first alarm has 15 % false ones where 5 % were meant. So there
are three looks, each with bounds at 99 %, which together spend the 2 % that a run may. Noise so large that
the floor never matters raises a false alarm in 2.0 % of the runs, by simulation, and less noise in fewer; by
Boole's inequality none does in more than 3 %. The shares are equal, because an early end saves most: on a
quiet machine nearly all runs end at the first look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dflash.bench import metrics
from dflash.bench.metrics import Metric
from dflash.bench.statistics import FloatArray, SignedRanks
from dflash.bench.verdict import minimum_detectable

LOOKS = (10, 15, 20)
LEVEL = 0.99
PILOT = 8


def next_look(pairs: int, looks: Sequence[int] = LOOKS) -> int | None:
    """The number of pairs at which to look next when there are ``pairs`` of them, or None after the last."""
    return next((look for look in looks if look > pairs), None)


@dataclass(frozen=True)
class Forecast:
    """What a pilot says: at which look a loss of the tolerance would show, None if at none of them.

    ``minimum_detectable`` is the least loss that each look shows with probability 90 %.
    """

    look: int | None
    minimum_detectable: dict[int, float]
    reason: str


def forecast(
    metric: Metric,
    log_ratios: FloatArray,
    tolerance: float,
    floor: float,
    looks: Sequence[int] = LOOKS,
    level: float = LEVEL,
) -> Forecast | None:
    """Plan a run from the log ratios float[n] of its first pairs; None if they are fewer than five.

    It only informs: looks stay where they are, as the error rates need it.
    """
    ranks = SignedRanks(log_ratios)
    least = {look: minimum_detectable(metric, ranks, level, floor, look) for look in looks}
    known = {look: share for look, share in least.items() if share is not None}
    if not known:
        return None
    look = next((look for look, share in known.items() if share <= tolerance), None)
    sought = f"{metrics.percent(tolerance)} of {metric.name}"
    last = max(known)
    if look is None:
        least_loss = metrics.percent(known[last], 1)
        reason = f"{sought} cannot be resolved here: {last} pairs show {least_loss} at the least"
    else:
        reason = f"{sought} should show in {look} pairs, which resolve {metrics.percent(known[look], 1)}"
    return Forecast(look, known, reason)
