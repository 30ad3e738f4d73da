from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, pairwise, permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.batching.mixing import lag_1_autocorrelation, length_entropy, mate_overlap, variance_ratio
from dflash.batching.plan import BatchPlan, PlanRequest
from dflash.batching.windows import build
from dflash.errors import PlanError


def ratio(windows: list[list[int]]) -> float:
    lengths = np.array([length for window in windows for length in window])
    return variance_ratio(lengths, np.array([len(w) for w in windows]), np.array([sum(w) for w in windows]))


def test_variance_ratio_by_hand() -> None:
    # Means 2 and 4 around 3, each of two samples: 2 + 2 = 4 between; squares 4 + 0 + 0 + 4 = 8 over 3 in all.
    assert ratio([[1, 3], [3, 5]]) == pytest.approx(4 / 1 / (8 / 3))
    assert ratio([[1, 1], [5, 5]]) == pytest.approx(3)
    assert ratio([[1, 5], [5, 1]]) == 0


@settings(max_examples=30)
@given(st.lists(st.integers(1, 9), min_size=3, max_size=6), st.data())
def test_variance_ratio_is_1_on_average_over_all_deals(lengths: list[int], data: st.DataObject) -> None:
    cuts = data.draw(st.sets(st.integers(1, len(lengths) - 1), min_size=1))
    bounds = [0, *sorted(cuts), len(lengths)]
    deals = [[list(deal[a:b]) for a, b in pairwise(bounds)] for deal in permutations(lengths)]
    if len(set(lengths)) == 1:
        assert all(math.isnan(ratio(deal)) for deal in deals)
    else:
        assert np.mean([ratio(deal) for deal in deals]) == pytest.approx(1)


def test_variance_of_one_window_or_none_is_not_a_number() -> None:
    assert math.isnan(ratio([[1, 2, 3]]))
    assert math.isnan(ratio([]))


def test_variance_of_sums_beyond_32_bits() -> None:
    assert ratio([[2**31 - 1, 1], [1, 2**31 - 1]]) == 0
    assert ratio([[2**31 - 1] * 3, [1] * 3]) == pytest.approx(5)  # 6 s^2 between, of 6 / 5 s^2 in all


def test_autocorrelation_by_hand() -> None:
    assert lag_1_autocorrelation(np.array([1.0, -1.0, 1.0, -1.0])) == pytest.approx(-3 / 4)
    assert lag_1_autocorrelation(np.array([0.0, 1.0, 2.0])) == 0  # deviations -1, 0, 1
    assert lag_1_autocorrelation(np.array([1.0, 1.0, 5.0, 5.0])) == pytest.approx(1 / 4)
    assert lag_1_autocorrelation(np.arange(1_000.0)) == pytest.approx(1, abs=0.01)
    for constant in ([], [3.0], [3.0, 3.0]):
        assert math.isnan(lag_1_autocorrelation(np.array(constant)))


def entropy(lengths: list[int], bounds: list[int]) -> float:
    """Of each segment sum_k n_k / n (psi(n) - psi(n_k)), in exact fractions; weighted by samples, in bits."""
    ordered = sorted(lengths)
    edges = [ordered[len(lengths) * k // 8] for k in range(1, 8)]
    total = Fraction(0)
    for start, end in pairwise(bounds):
        bins = [sum(edge <= length for edge in edges) for length in lengths[start:end]]
        for one in bins:  # each sample's psi(n) - psi(n_k) is a sum of 1 / i
            total += sum((Fraction(1, i) for i in range(bins.count(one), len(bins))), Fraction(0))
    return float(total / len(lengths)) / math.log(2)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.data())
def test_entropy_is_that_of_plain_python(lengths: list[int], data: st.DataObject) -> None:
    inner = sorted(data.draw(st.lists(st.integers(0, len(lengths)), max_size=5)))
    bounds = [[0, *inner, len(lengths)], [0, len(lengths)]]
    found = length_entropy(np.array(lengths), *map(np.array, bounds))
    assert found == pytest.approx([entropy(lengths, some) for some in bounds])


def test_entropy_hardly_underestimates_few_samples() -> None:
    """Over all draws of n from 3 equal bins, the bias is what Zhang derives: sum_{v >= n} (1 - p)^v / v."""
    n = 5
    bins = np.repeat([1, 2, 3], 8)  # the last samples only make these the octiles' bins
    values = []
    for draw in product([1, 2, 3], repeat=n):
        lengths = np.concatenate([draw, bins])
        rest = length_entropy(lengths, np.array([0, n, n + 24]))[0] * (n + 24)
        values.append((rest - 24 * length_entropy(bins, np.array([0, 24]))[0]) / n * math.log(2))
    missing = sum((2 / 3) ** v / v for v in range(n, 200))
    assert np.mean(values) == pytest.approx(math.log(3) - missing)
    plug_in = np.mean(
        [
            -sum(draw.count(k) / n * math.log(draw.count(k) / n) for k in set(draw))
            for draw in product("abc", repeat=n)
        ]
    )
    assert missing < (math.log(3) - plug_in) / 2


def test_entropy_of_ideal_mixture_and_of_none() -> None:
    lengths = np.random.default_rng(0).permutation(80_000)
    mixed, alone = length_entropy(lengths, np.arange(0, 80_001, 400), np.arange(80_001))
    assert mixed == pytest.approx(3, abs=0.001)
    assert alone == 0
    assert length_entropy(np.sort(lengths), np.arange(0, 80_001, 10_000)) == [0]
    assert length_entropy(np.full(50, 7), np.arange(0, 51, 10)) == [0]
    assert all(
        map(math.isnan, length_entropy(np.empty(0, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64)))
    )


def plan_of(batches: list[list[int]], n: int) -> BatchPlan:
    samples = np.array([sample for batch in batches for sample in batch], dtype=np.int64)
    offsets = np.cumsum([0, *map(len, batches)], dtype=np.int64)
    request = PlanRequest(10**6, 0, 0, 1, 1, "pad")
    return build(samples, offsets, np.ones(n, dtype=np.int64), request, order="given")


def pairs(batches: list[list[int]]) -> set[frozenset[int]]:
    return {frozenset(pair) for batch in batches for pair in combinations(batch, 2)}


@st.composite
def partitions(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]]]:
    """Two epochs' micro-batches of the same samples; some may be left out of either."""
    n = draw(st.integers(0, 14))
    epochs = []
    for _ in range(2):
        batch_of = draw(st.lists(st.integers(-1, 4), min_size=n, max_size=n))
        epochs.append([[s for s in range(n) if batch_of[s] == number] for number in range(5)])
    return epochs[0], epochs[1]


@given(partitions())
def test_overlap_counts_pairs(epochs: tuple[list[list[int]], list[list[int]]]) -> None:
    first, second = map(pairs, epochs)
    found = mate_overlap(*(plan_of(batches, 14) for batches in epochs))
    if first | second:
        assert found == len(first & second) / len(first | second)
    else:
        assert math.isnan(found)


def test_overlap_is_1_for_frozen_micro_batches_in_any_order() -> None:
    assert mate_overlap(plan_of([[0, 1, 2], [3, 4]], 5), plan_of([[4, 3], [2, 0, 1]], 5)) == 1
    assert mate_overlap(plan_of([[0, 1], [2, 3]], 4), plan_of([[0, 2], [1, 3]], 4)) == 0


def test_epochs_of_other_samples_cannot_be_compared() -> None:
    plan = plan_of([[0, 1]], 2)
    with pytest.raises(PlanError, match="same store rows"):
        mate_overlap(plan, replace(plan, ids=np.array([5, 6])))
