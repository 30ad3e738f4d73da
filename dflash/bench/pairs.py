"""The order of trials, adjacent pairs of reference and candidate in ABBA order; and which pairs count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dflash.bench.metrics import percent

MOST_STEAL = 0.05
MOST_INVALID = 0.2


@dataclass(frozen=True)
class Slot:
    """One trial that is to be run."""

    pair: int
    """counts the pairs of the whole run"""
    slot: int
    """0 for the first trial of its pair, 1 for the second"""
    arm: str


@dataclass(frozen=True)
class Duel:
    """Two arms that meet in pairs; without a reference, one arm alone."""

    reference: str | None
    candidate: str
    same_strategy: bool = False
    """the same strategy with the same options on both sides, so that exact figures should not differ"""


def slots(duel: Duel, number: int, pair: int, *, candidate_first: bool) -> list[Slot]:
    """The trials of a duel's pair ``number``, which is ``pair`` among all of the run.

    From pair to pair the order turns over (ABBA), so a machine that drifts or favours the second trial
    favours each arm equally often; ``candidate_first`` is the order of the first one, to be drawn anew in
    every run.
    """
    order = [arm for arm in (duel.reference, duel.candidate) if arm is not None]
    if candidate_first != (number % 2 == 1):
        order.reverse()
    return [Slot(pair, place, arm) for place, arm in enumerate(order)]


class Disturbed(Protocol):
    """What is known of the machine during a trial."""

    @property
    def arm(self) -> str: ...

    @property
    def steal_share(self) -> float | None:
        """of the machine's CPU time that its host took away; None where the system does not tell"""

    @property
    def throttled(self) -> Sequence[str]:
        """why its GPUs ran slower than they can"""


def invalid(first: Disturbed, second: Disturbed) -> str | None:
    """Why a pair is invalid, or None: one of its trials was robbed of CPU time, or throttled.

    The rule looks at the machine alone and never at the figures, or it would choose among them.
    """
    for trial in (first, second):
        if trial.throttled:
            return f"{trial.arm}: GPU throttled ({', '.join(trial.throttled)})"
        if trial.steal_share is not None and trial.steal_share > MOST_STEAL:
            return f"{trial.arm}: {percent(trial.steal_share, 1)} of the CPU time was stolen"
    return None


def left_out(reasons: Sequence[str | None]) -> list[int]:
    """The places of the pairs to be left out; ``reasons`` has one entry per pair, None for a valid one.

    Those that are invalid, but none if they are more than a fifth: then disturbance is what this machine is
    like, and leaving it out would be a choice. The bounds hold either way.
    """
    places = [place for place, reason in enumerate(reasons) if reason is not None]
    return places if len(places) <= MOST_INVALID * len(reasons) else []
