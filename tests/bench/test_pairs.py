from __future__ import annotations

from dataclasses import dataclass, field

from dflash.bench.pairs import Duel, invalid, left_out, slots


def test_the_order_turns_over_from_pair_to_pair():
    """ABBA: with a drift of one unit per trial, both arms' mean positions are equal over two pairs."""
    for first in (False, True):
        pairs = [slots(Duel("a", "b"), number, 7 + number, candidate_first=first) for number in range(4)]
        arms = [slot.arm for pair in pairs for slot in pair]
        assert arms == (["b", "a", "a", "b"] if first else ["a", "b", "b", "a"]) * 2
        positions = {arm: [i for i, name in enumerate(arms) if name == arm] for arm in "ab"}
        assert sum(positions["a"]) == sum(positions["b"])
        assert [(slot.pair, slot.slot) for pair in pairs for slot in pair] == [
            (7 + number, place) for number in range(4) for place in (0, 1)
        ]


def test_an_arm_alone_is_a_pair_of_one():
    assert [slot.arm for slot in slots(Duel(None, "a"), 3, 3, candidate_first=True)] == ["a"]


@dataclass
class Ran:
    arm: str = "a"
    steal_share: float | None = 0.0
    throttled: list[str] = field(default_factory=list)


def test_a_pair_is_invalid_where_either_trial_was_robbed_or_throttled():
    assert invalid(Ran(), Ran("b")) is None
    assert invalid(Ran(steal_share=None), Ran("b", steal_share=0.05)) is None
    assert invalid(Ran(), Ran("b", steal_share=0.123)) == "b: 12.3 % of the CPU time was stolen"
    assert invalid(Ran(throttled=["power cap", "heat"]), Ran()) == "a: GPU throttled (power cap, heat)"


def test_a_fifth_of_the_pairs_may_be_left_out_and_no_more():
    reasons = [None, "stolen", None, None, "stolen", None, None, None, None, None]
    assert left_out(reasons) == [1, 4]
    assert left_out([*reasons[:9], "stolen"]) == []
    assert left_out([]) == []
    assert left_out(["stolen"]) == []
    assert left_out([None] * 4 + ["stolen"]) == [4]
