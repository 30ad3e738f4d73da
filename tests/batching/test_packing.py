from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.batching.packing import first_fit, greedy, longest_first_windows, sorted_windows
from dflash.batching.plan import IntArray

BUDGETS = st.integers(40, 200)
LENGTHS = st.lists(st.integers(1, 40), max_size=60)
SIZES = st.integers(1, 5)

Batches = list[list[int]]


def some_order(lengths: list[int]) -> IntArray:
    return np.random.default_rng(len(lengths)).permutation(len(lengths))


def batches_of(packed: tuple[IntArray, IntArray]) -> Batches:
    """The samples of each micro-batch."""
    samples, offsets = packed
    assert samples.dtype == offsets.dtype == np.int64
    assert (offsets[0], offsets[-1]) == (0, len(samples))
    return [samples[start:end].tolist() for start, end in pairwise(offsets.tolist())]


@given(LENGTHS, BUDGETS)
def test_every_micro_batch_fits_and_takes_all_it_can(lengths: list[int], budget: int) -> None:
    order = some_order(lengths)
    offsets = greedy(np.array(lengths, dtype=np.int64), order, budget)
    assert offsets.dtype == np.int64
    assert (offsets[0], offsets[-1]) == (0, len(lengths))
    in_order = [lengths[sample] for sample in order]
    for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        batch = in_order[start:end]
        assert batch
        assert len(batch) * max(batch) <= budget
        if end < len(in_order):
            assert (len(batch) + 1) * max(in_order[start : end + 1]) > budget


@given(st.lists(st.lists(st.integers(1, 40), max_size=12), max_size=8), BUDGETS)
def test_groups_are_filled_one_by_one(groups: list[list[int]], budget: int) -> None:
    lengths = np.array([length for group in groups for length in group], dtype=np.int64)
    bounds = np.cumsum([0, *map(len, groups)], dtype=np.int64)
    expected = [0]
    for start, end in pairwise(bounds.tolist()):
        expected += (start + greedy(lengths, np.arange(start, end), budget)[1:]).tolist()
    assert greedy(lengths, np.arange(len(lengths)), budget, bounds).tolist() == expected


def test_padding_counts_not_the_sum() -> None:
    """lhotse#640: a batch whose lengths sum to the budget is over it once padded."""
    lengths = np.array([73, 74, 76, 110, 114])
    assert lengths[:4].sum() <= 340
    assert greedy(lengths, np.arange(5), 340).tolist() == [0, 3, 5]


def test_rows_times_longest_needs_64_bits() -> None:
    budget = 2**31 - 1
    lengths = np.full(4, budget, dtype=np.int64)
    for batches in (
        [[place] for place in greedy(lengths, np.arange(4), budget)[:-1].tolist()],
        batches_of(sorted_windows(lengths, np.arange(4), budget, 3)),
        batches_of(longest_first_windows(lengths, np.arange(4), budget, 3)),
        batches_of(first_fit(lengths, np.arange(4), budget)),
    ):
        assert batches == [[0], [1], [2], [3]]


def cut_sorted(lengths: list[int], budget: int) -> list[list[int]]:
    """Lengths in ascending order, cut into padded micro-batches."""
    batches: list[list[int]] = []
    for length in sorted(lengths):
        if batches and (len(batches[-1]) + 1) * length <= budget:
            batches[-1].append(length)
        else:
            batches.append([length])
    return batches


@given(LENGTHS, BUDGETS, SIZES)
def test_a_window_takes_the_most_that_its_micro_batches_hold_sorted(
    lengths: list[int], budget: int, size: int
) -> None:
    order = some_order(lengths).tolist()
    left, expected = [lengths[sample] for sample in order], []
    while left:
        count = max(c for c in range(1, len(left) + 1) if len(cut_sorted(left[:c], budget)) <= size)
        expected += cut_sorted(left[:count], budget)
        left = left[count:]
    packed = sorted_windows(np.array(lengths, dtype=np.int64), np.array(order, dtype=np.int64), budget, size)
    batches = batches_of(packed)
    assert sorted(packed[0].tolist()) == list(range(len(lengths)))
    assert [sorted(lengths[sample] for sample in batch) for batch in batches] == expected
    place = {sample: number for number, sample in enumerate(order)}
    assert all(sorted(batch, key=lambda sample: place[sample]) == batch for batch in batches)


@settings(max_examples=60)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=7), st.integers(12, 40))
def test_no_other_way_to_cut_takes_fewer_micro_batches(lengths: list[int], budget: int) -> None:
    """Over all partitions into contiguous stretches of the sorted lengths."""
    ordered = sorted(lengths)
    n = len(ordered)
    fewest = min(
        len(cuts) + 1
        for count in range(n)
        for cuts in combinations(range(1, n), count)
        if all((b - a) * ordered[b - 1] <= budget for a, b in pairwise([0, *cuts, n]))
    )
    order = np.arange(n)
    assert len(batches_of(sorted_windows(np.array(lengths), order, budget, n))) == fewest


def deal(lengths: list[int], budget: int, size: int) -> list[list[int]] | None:
    """Places dealt longest first to the micro-batch with the fewest tokens; None if one overflows."""
    batches: list[list[int]] = [[] for _ in range(size)]
    loads = [0] * size
    for place in sorted(range(len(lengths)), key=lambda place: (-lengths[place], place)):
        number = loads.index(min(loads))
        loads[number] += lengths[place]
        batches[number].append(place)
    return [sorted(batch) for batch in batches] if max(loads) <= budget else None


@given(LENGTHS, BUDGETS, SIZES)
def test_a_window_is_dealt_longest_first_and_holds_not_one_more(
    lengths: list[int], budget: int, size: int
) -> None:
    order = some_order(lengths).tolist()
    packed = longest_first_windows(
        np.array(lengths, dtype=np.int64), np.array(order, dtype=np.int64), budget, size
    )
    batches = batches_of(packed)
    assert sorted(packed[0].tolist()) == list(range(len(lengths)))
    start = 0
    for first in range(0, len(batches), size):
        window = batches[first : first + size]
        count = sum(map(len, window))
        tokens = [lengths[sample] for sample in order[start:]]
        dealt = deal(tokens[:count], budget, len(window))
        assert dealt is not None
        assert window == [[order[start + place] for place in batch] for batch in dealt]
        if start + count < len(order):
            assert len(window) == size
            assert deal(tokens[: count + 1], budget, size) is None
        else:
            assert all(deal(tokens, budget, fewer) is None for fewer in range(1, len(window)))
        start += count


@given(LENGTHS, BUDGETS)
def test_first_fit_takes_the_first_with_room(lengths: list[int], budget: int) -> None:
    order = some_order(lengths).tolist()
    expected: Batches = []
    for sample in order:
        for batch in expected:
            if sum(lengths[other] for other in batch) + lengths[sample] <= budget:
                batch.append(sample)
                break
        else:
            expected.append([sample])
    packed = first_fit(np.array(lengths, dtype=np.int64), np.array(order, dtype=np.int64), budget)
    assert batches_of(packed) == expected


@pytest.mark.parametrize("budget", [7, 8, 9, 8_191, 8_192, 8_193])
def test_any_budget_serves_the_tree(budget: int) -> None:
    """TRL#3887: a segment tree that packed nothing unless the budget was a power of two."""
    lengths = np.random.default_rng(budget).integers(1, budget + 1, 400)
    batches = batches_of(first_fit(lengths, np.arange(400), budget))
    loads = [int(lengths[batch].sum()) for batch in batches]
    assert max(loads) <= budget
    assert sum(load * 2 <= budget for load in loads) <= 1  # two such would be one
    next_fit, load = 0, budget
    for length in lengths.tolist():
        next_fit, load = (next_fit, load + length) if load + length <= budget else (next_fit + 1, length)
    assert len(batches) < next_fit


@pytest.mark.parametrize(
    "pack",
    [
        partial(sorted_windows, window_size=4),
        partial(longest_first_windows, window_size=4),
        first_fit,
    ],
)
def test_a_part_of_the_samples_can_be_packed(pack: Callable[..., tuple[IntArray, IntArray]]) -> None:
    lengths = np.array([5, 9, 5, 9, 5])
    assert sorted(pack(lengths, np.array([4, 1]), 10)[0].tolist()) == [1, 4]
    assert batches_of(pack(lengths, np.empty(0, dtype=np.int64), 10)) == []
    assert batches_of(pack(lengths, np.array([3]), 10)) == [[3]]
