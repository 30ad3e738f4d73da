"""The order of trials: adjacent pairs of reference and candidate, in ABBA order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Slot:
    """One trial that is to be run."""

    pair: int
    """counts the pairs of the whole run"""
    slot: int
    """0 for the first trial of its pair, 1 for the second"""
    arm: str


def schedule(
    reference: str, candidates: Sequence[str], rounds: int, *, candidate_first: bool
) -> Iterator[Slot]:
    """``rounds`` pairs for each candidate, each candidate with trials of the reference of its own.

    From round to round the order within a pair turns over (ABBA), so a machine that drifts or favours the
    second trial favours each arm equally often; ``candidate_first`` is the first round's order, to be drawn
    anew in every run. Without candidates a round is one trial of the reference.
    """
    pair = 0
    for round_number in range(rounds):
        for candidate in candidates or (None,):
            order = [reference] if candidate is None else [reference, candidate]
            if candidate_first != (round_number % 2 == 1):
                order.reverse()
            yield from (Slot(pair, place, arm) for place, arm in enumerate(order))
            pair += 1
