from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.batching import packing, prediction
from dflash.batching.plan import PlanRequest
from dflash_plugins.bucketed import Bucketed
from dflash_plugins.random import Random
from dflash_plugins.sorted import Sorted

REQUEST = PlanRequest(1_000, 0, 0, 1, 1, "spread")


def expected(lengths: list[int], budget: int, ends: list[int]) -> float:
    """N / sum over n of F(T / n)^n per bucket, term by term."""
    total, below = 0.0, 0
    for end in ends:
        bucket = [length for length in lengths if below < length <= end]
        rows = range(1, len(bucket) + 1)
        fit = sum((sum(length * n <= budget for length in bucket) / len(bucket)) ** n for n in rows)
        total += len(bucket) / fit if bucket else 0
        below = end
    return total


@given(
    st.lists(st.integers(1, 40), max_size=40),
    st.integers(40, 300),
    st.sets(st.integers(1, 39), max_size=4),
)
def test_the_closed_form(lengths: list[int], budget: int, inner: set[int]) -> None:
    ends = [*sorted(inner), 40]
    found = prediction.micro_batches(np.array(lengths, dtype=np.int64), budget, np.array(ends))
    assert found == pytest.approx(expected(lengths, budget, ends))


def test_equal_lengths_leave_nothing_to_chance() -> None:
    assert prediction.micro_batches(np.full(90, 5), 50, np.array([5])) == 9
    assert prediction.micro_batches(np.full(3, 5), 10**9, np.array([5])) == 1  # one holds them all


def test_as_many_as_greedy_filling_needs() -> None:
    """Narrow buckets, many draws; what the form leaves out is a part of the longest sample."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(90, 111, 100_000)
    cut = packing.greedy(lengths, rng.permutation(len(lengths)), 4_000)
    found = prediction.micro_batches(lengths, 4_000, np.array([110]))
    assert found == pytest.approx(len(cut) - 1, rel=0.002)


def test_a_budget_of_a_thousand_million_rows() -> None:
    lengths = np.array([1, 2**31 - 1])
    # One row always, two if both are the short one; there are no more than two samples.
    assert prediction.micro_batches(lengths, 2**31 - 1, np.array([2**31 - 1])) == pytest.approx(2 / 1.25)


def test_a_strategy_that_fills_buckets_greedily_says_them() -> None:
    lengths = np.array([10, 500, 30, 1_000])
    ends = prediction.bucket_ends(Bucketed(boundaries="100+600"), lengths, REQUEST)
    assert ends is not None
    assert ends.tolist() == [100, 600, 1_000]
    one = prediction.bucket_ends(Random(), lengths, REQUEST)
    assert one is not None
    assert one.tolist() == [1_000]
    assert prediction.bucket_ends(Sorted(), lengths, REQUEST) is None
