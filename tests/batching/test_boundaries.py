from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.batching.boundaries import equal_tokens, equal_width, optimal, quantile
from dflash.batching.plan import IntArray


def micro_batches(lengths: list[int], ends: tuple[int, ...], budget: int) -> Fraction:
    """The objective, straight from its definition."""
    total, below = Fraction(0), 0
    for end in ends:
        total += Fraction(sum(below < length <= end for length in lengths), budget // end)
        below = end
    return total


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(60, 240), st.integers(1, 4))
def test_as_good_as_the_best_of_all_boundaries(lengths: list[int], budget: int, buckets: int) -> None:
    ends = optimal(np.array(lengths, dtype=np.int64), budget, buckets)
    assert ends.dtype == np.int64
    assert ends[-1] == max(lengths)
    assert (np.diff(ends) > 0).all()
    assert len(ends) == min(buckets, len({budget // length for length in lengths}))
    inner = sorted(set(lengths) - {max(lengths)})
    best = min(
        micro_batches(lengths, (*chosen, max(lengths)), budget)
        for count in range(min(buckets, len(inner) + 1))
        for chosen in combinations(inner, count)
    )
    assert micro_batches(lengths, tuple(ends.tolist()), budget) == best


@pytest.mark.parametrize("buckets", [2, 3])
def test_ties_go_to_the_smaller_boundary(buckets: int) -> None:
    # Budget 8: ends 1 and 2 both need 24/8 + 4/1 = 28/4 = 7 micro-batches for the short samples.
    lengths = [1] * 24 + [2] * 4 + [8] * 5
    assert micro_batches(lengths, (1, 8), 8) == micro_batches(lengths, (2, 8), 8) == 12
    expected = {2: [1, 8], 3: [1, 2, 8]}
    assert optimal(np.array(lengths), 8, buckets).tolist() == expected[buckets]


def test_more_buckets_than_row_counts() -> None:
    assert optimal(np.array([5, 5, 5]), 10, 8).tolist() == [5]
    assert optimal(np.array([1, 2, 5, 9]), 10, 100).tolist() == [1, 2, 5, 9]
    assert optimal(np.empty(0, dtype=np.int64), 10, 8).tolist() == []


def test_six_buckets_of_a_known_distribution() -> None:
    """49,152 divided by 38, 25, 18, 13 and 9: an independent search over the same distribution."""
    lengths = np.exp(np.random.default_rng(0).normal(np.log(1800), 0.6, 902_087)).astype(np.int64)
    ends = optimal(np.clip(lengths, 65, 8191), 49_152, 6)
    assert ends.tolist() == [1293, 1966, 2730, 3780, 5461, 8191]


def test_a_large_budget_with_many_row_counts() -> None:
    lengths = np.arange(1, 2_001, dtype=np.int64)
    ends = optimal(lengths, 4_000_000, 4)
    assert len(ends) == 4
    assert ends[-1] == 2_000


def test_the_usual_rules_by_hand() -> None:
    lengths = np.array([9, 1, 1, 2, 3, 8])  # 24 tokens
    assert equal_tokens(lengths, 2).tolist() == [8, 9]  # 1, 2, 4, 7, 15: half of 24 is reached by the 8
    assert equal_tokens(lengths, 3).tolist() == [8, 9]  # a third and two thirds, 8 and 16, both need the 8
    assert quantile(lengths, 2).tolist() == [2, 9]
    assert quantile(lengths, 3).tolist() == [1, 3, 9]
    assert equal_width(lengths, 2).tolist() == [5, 9]
    assert equal_width(lengths, 3).tolist() == [4, 7, 9]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 9))
def test_each_rule_shares_out_what_it_says(lengths: list[int], buckets: int) -> None:
    """Each end is the first that reaches its share."""
    array, shares = np.array(lengths, dtype=np.int64), range(1, buckets + 1)

    def reach(total: Callable[[list[int]], int]) -> list[int]:
        upto = {end: total([length for length in lengths if length <= end]) for end in sorted(lengths)}
        firsts = {next(e for e in upto if upto[e] * buckets >= k * total(lengths)) for k in shares}
        return sorted(firsts)

    assert equal_tokens(array, buckets).tolist() == reach(sum)
    assert quantile(array, buckets).tolist() == reach(len)
    low, high = min(lengths), max(lengths)
    firsts = {
        next(e for e in range(low, high + 1) if (e - low) * buckets >= k * (high - low)) for k in shares
    }
    assert equal_width(array, buckets).tolist() == sorted(firsts)


@pytest.mark.parametrize("rule", [equal_tokens, quantile, equal_width])
def test_no_lengths_no_ends(rule: Callable[..., IntArray]) -> None:
    assert rule(np.empty(0, dtype=np.int64), 4).tolist() == []
    assert rule(np.array([5, 5, 5]), 4).tolist() == [5]
