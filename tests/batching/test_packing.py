from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.batching.packing import greedy


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), max_size=60), st.integers(40, 200))
def test_every_micro_batch_fits_and_takes_all_it_can(lengths: list[int], budget: int) -> None:
    order = np.random.default_rng(len(lengths)).permutation(len(lengths))
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


def test_padding_counts_not_the_sum() -> None:
    """lhotse#640: a batch whose lengths sum to the budget is over it once padded."""
    lengths = np.array([73, 74, 76, 110, 114])
    assert lengths[:4].sum() <= 340
    assert greedy(lengths, np.arange(5), 340).tolist() == [0, 3, 5]


def test_rows_times_longest_needs_64_bits() -> None:
    budget = 2**31 - 1
    lengths = np.full(4, budget, dtype=np.int64)
    assert greedy(lengths, np.arange(4), budget).tolist() == [0, 1, 2, 3, 4]
