from __future__ import annotations

from collections import Counter
from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from dflash.bench.pairs import schedule


@given(st.integers(1, 20), st.integers(0, 4), st.booleans())
def test_every_candidate_has_adjacent_trials_of_the_reference(rounds, candidates, first):
    names = [f"c{number}" for number in range(candidates)]
    slots = list(schedule("r", names, rounds, candidate_first=first))
    pairs = [list(group) for _, group in groupby(slots, key=lambda slot: slot.pair)]
    assert [pair[0].pair for pair in pairs] == list(range(len(pairs)))
    assert all([slot.slot for slot in pair] == list(range(len(pair))) for pair in pairs)
    expected = Counter(frozenset(["r", name]) for name in names for _ in range(rounds))
    if not names:
        expected = Counter({frozenset(["r"]): rounds})
    assert Counter(frozenset(slot.arm for slot in pair) for pair in pairs) == expected


def test_the_order_turns_over_from_round_to_round():
    """ABBA: with a drift of one unit per trial, both arms' mean positions are equal over two rounds."""
    for first in (False, True):
        arms = [slot.arm for slot in schedule("a", ["b"], 4, candidate_first=first)]
        assert arms == (["b", "a", "a", "b"] if first else ["a", "b", "b", "a"]) * 2
        positions = {arm: [i for i, name in enumerate(arms) if name == arm] for arm in "ab"}
        assert sum(positions["a"]) == sum(positions["b"])
