from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.batching.composition import measure, padding_efficiency
from dflash.batching.plan import BatchPlan, PlanRequest
from dflash.batching.windows import build


def plan_of(batches: list[list[int]], lengths: list[int], drafters: int = 1) -> BatchPlan:
    request = PlanRequest(10**6, 0, 0, drafters, 1, "pad")
    samples = np.array([sample for batch in batches for sample in batch], dtype=np.int64)
    offsets = np.cumsum([0, *map(len, batches)], dtype=np.int64)
    return build(samples, offsets, np.array(lengths, dtype=np.int64), request, order="given")


def test_by_hand() -> None:
    lengths = [3, 5, 2, 7, 1]
    plan = plan_of([[0, 1], [], [3, 4, 2]], lengths, drafters=2)  # one empty one more fills the window
    c = measure(plan, np.array(lengths))
    assert c.rows.tolist() == [2, 0, 3, 0]
    assert c.longest.tolist() == [5, 0, 7, 0]
    assert c.real_tokens.tolist() == [8, 0, 10, 0]
    assert c.padded_tokens.tolist() == [10, 0, 21, 0]
    assert c.window_rows.tolist() == [2, 3]
    assert c.window_real_tokens.tolist() == [8, 10]
    assert c.window_padded_tokens.tolist() == [10, 21]
    assert c.window_mean_length.tolist() == pytest.approx([4, 10 / 3])
    assert c.padding_efficiency == padding_efficiency(plan, np.array(lengths)) == 18 / 31
    assert c.fill(40) == 18 / 80


def test_packed_has_no_padding() -> None:
    plan = replace(plan_of([[0, 1], [2]], [3, 5, 2]), layout="packed")
    assert measure(plan, np.array([3, 5, 2])).padded_tokens.tolist() == [8, 2]
    assert padding_efficiency(plan, np.array([3, 5, 2])) == 1


def test_nothing_is_not_a_number() -> None:
    plan = plan_of([], [])
    assert np.isnan(padding_efficiency(plan, np.empty(0, dtype=np.int64)))
    assert np.isnan(measure(plan, np.empty(0, dtype=np.int64)).fill(8))


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(1, 9), max_size=5), max_size=12), st.integers(1, 4))
def test_counts_are_those_of_plain_python(batches: list[list[int]], drafters: int) -> None:
    lengths = [length for batch in batches for length in batch]
    rows = iter(range(len(lengths)))
    plan = plan_of([[next(rows) for _ in batch] for batch in batches], lengths, drafters)
    c = measure(plan, np.array(lengths, dtype=np.int64))
    batches = batches + [[]] * (-len(batches) % drafters)
    assert c.real_tokens.tolist() == [sum(batch) for batch in batches]
    assert c.longest.tolist() == [max(batch, default=0) for batch in batches]
    padded = [len(batch) * max(batch, default=0) for batch in batches]
    assert c.padded_tokens.tolist() == padded
    windows = [padded[start : start + drafters] for start in range(0, len(padded), drafters)]
    assert c.window_padded_tokens.tolist() == [sum(window) for window in windows]


def test_sums_beyond_32_bits() -> None:
    lengths = [2**20] * 4_096
    plan = plan_of([[sample] for sample in range(4_096)], lengths)
    assert measure(plan, np.array(lengths)).real_tokens.sum() == 2**32
    assert padding_efficiency(plan, np.array(lengths)) == 1
