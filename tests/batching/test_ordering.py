from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.batching.ordering import stratified, synced

GROUPS = st.lists(st.integers(0, 4), max_size=60)


@given(GROUPS, st.integers(1, 8), st.integers(0, 3))
def test_each_micro_batch_comes_once(groups: list[int], size: int, seed: int) -> None:
    group = np.array(groups, dtype=np.int64)
    for order in (
        stratified(group, np.random.default_rng(seed)),
        synced(group, size, np.random.default_rng(seed)),
    ):
        assert sorted(order.tolist()) == list(range(len(groups)))


@settings(max_examples=50)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=5), st.integers(0, 3))
def test_any_stretch_has_every_group_in_proportion(sizes: list[int], seed: int) -> None:
    """Drawn one to each N-th part, a group of N is never more than one ahead or behind."""
    group = np.repeat(np.arange(len(sizes)), sizes)
    in_order = group[stratified(group, np.random.default_rng(seed))]
    share = np.arange(1, len(group) + 1) / len(group)
    ahead = [np.abs(np.cumsum(in_order == k) - share * size).max() for k, size in enumerate(sizes)]
    # The stretch itself is known to one micro-batch of each group.
    assert max(ahead) <= 1 + len(sizes)


def test_stratified_windows_vary_far_less_than_shuffled_ones() -> None:
    group = np.repeat(np.arange(6), 2_000)
    windows = group[stratified(group, np.random.default_rng(0))].reshape(-1, 60)
    counts = np.stack([np.bincount(window, minlength=6) for window in windows])
    assert counts.mean(axis=0).tolist() == [10] * 6
    assert counts.var(axis=0).max() < 1  # a shuffle's is 60 x 1/6 x 5/6 = 8.3


@given(GROUPS, st.integers(1, 8), st.integers(0, 3))
def test_as_many_windows_of_one_group_as_can_be(groups: list[int], size: int, seed: int) -> None:
    group = np.array(groups, dtype=np.int64)
    in_order = group[synced(group, size, np.random.default_rng(seed))].tolist()
    windows = [in_order[start : start + size] for start in range(0, len(in_order) // size * size, size)]
    pure = Counter(window[0] for window in windows if len(set(window)) == 1)
    for number, count in Counter(groups).items():
        assert pure[number] >= count // size
    mixed = [sorted(set(window)) for window in windows if len(set(window)) > 1]
    assert len(mixed) <= len(set(groups)) - 1 if groups else not mixed
    present = sorted(set(groups))
    for window in mixed:  # of neighbours, whatever groups have nothing left
        between = [number for number in present if window[0] <= number <= window[-1]]
        assert all(number in window or groups.count(number) % size == 0 for number in between)


def test_orders_are_drawn_anew() -> None:
    group = np.repeat(np.arange(3), 20)
    for make in (stratified, lambda group, rng: synced(group, 4, rng)):
        orders = [make(group, np.random.default_rng(seed)).tolist() for seed in (0, 1, 0)]
        assert orders[0] == orders[2] != orders[1]


def test_synced_windows_are_shuffled_and_the_unfilled_one_is_last() -> None:
    group = np.repeat(np.arange(3), [402, 401, 399])
    in_order = group[synced(group, 4, np.random.default_rng(0))]
    first = in_order[:1_200].reshape(-1, 4)[:, 0]
    assert (np.diff(first) < 0).sum() > 80  # of 299 steps a third go down
    assert len(in_order) % 4 == 2
    assert set(in_order[-2:].tolist()) == {2}
