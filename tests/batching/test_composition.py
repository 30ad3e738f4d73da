from __future__ import annotations

import math
import statistics
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.batching import mixing, prediction
from dflash.batching.composition import MEASURES, measure, measure_composition, padding_efficiency
from dflash.batching.plan import BatchPlan, PlanRequest
from dflash.batching.windows import assign, build


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


REQUEST = PlanRequest(token_budget=60, seed=0, epoch=0, drafters=2, accumulation=2, tail="pad")


def work(batch: list[int], layout: str, attention_length: int) -> int:
    if layout == "padded":
        return len(batch) * max(batch, default=0) * (attention_length + max(batch, default=0))
    return sum(length * (attention_length + length) for length in batch)


def measured_naively(plan: BatchPlan, lengths: list[int]) -> dict[str, float]:
    """The measures on lists, straight from their definitions."""
    batches = [[lengths[sample] for sample in plan.batch(number)] for number in range(plan.batches)]
    windows = [batches[start : start + 4] for start in range(0, len(batches), 4)]
    filled = [batch for batch in batches if batch]
    tokens = [sum(map(sum, window)) for window in windows]
    padded = [len(b) * max(b) if plan.layout == "padded" else sum(b) for b in filled]
    squares = [len(b) * max(b) ** 2 if plan.layout == "padded" else sum(x * x for x in b) for b in filled]
    shapes = {(len(b), max(b)) if plan.layout == "padded" else sum(b) for b in filled}
    stragglers = []
    for number in range(plan.windows):
        taken = assign(plan, number, 2, np.array(lengths), REQUEST.attention_length)
        loads = [
            sum(work(batches[batch], plan.layout, REQUEST.attention_length) for batch in column)
            for column in taken.T
        ]
        stragglers.append(max(loads) / statistics.mean(loads))
    return {
        "padding_efficiency": sum(tokens) / sum(padded),
        "fill": sum(tokens) / (60 * len(filled)),
        "windows": len(windows),
        "micro_batches": len(filled),
        "window_token_variation": statistics.pstdev(tokens) / statistics.mean(tokens),
        "straggler_ratio": statistics.mean(stragglers),
        "distinct_shapes": len(shapes),
        "squared_length_sum": sum(squares),
        "largest_micro_batch": max(padded),
    }


@pytest.mark.parametrize("layout", ["padded", "packed"])
@given(st.lists(st.lists(st.integers(1, 15), min_size=1, max_size=4), min_size=1, max_size=14))
def test_measures_are_those_of_plain_python(layout: Any, batches: list[list[int]]) -> None:
    lengths = [length for batch in batches for length in batch]
    offsets = np.cumsum([0, *map(len, batches)], dtype=np.int64)
    array, rows = np.array(lengths, dtype=np.int64), np.arange(len(lengths))
    plan = build(rows, offsets, array, REQUEST, layout=layout)
    found = measure_composition(plan, array, REQUEST).metrics
    expected = measured_naively(plan, lengths)
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert all(type(value) is float for value in found.values())


def test_mixing_and_prediction_stand_beside() -> None:
    """Against their own modules, whose tests know the right values."""
    lengths = np.random.default_rng(0).integers(1, 16, 300)
    halves = np.random.default_rng(1).permutation(300)
    offsets = np.arange(0, 301, 4)
    plan, other = (build(rows, offsets, lengths, REQUEST, order="given") for rows in (np.arange(300), halves))
    found = measure_composition(plan, lengths, REQUEST, other, np.array([5, 15])).metrics
    assert list(found) == list(MEASURES)  # all, and in their order
    windows = [lengths[start : start + 16] for start in range(0, 300, 16)]
    means = np.array([window.mean() for window in windows])
    between = sum(len(window) * (window.mean() - lengths.mean()) ** 2 for window in windows)
    assert found["variance_ratio"] == pytest.approx(between / (len(windows) - 1) / lengths.var(ddof=1))
    off = means - means.mean()
    assert found["window_length_autocorrelation"] == pytest.approx(
        (off[1:] * off[:-1]).sum() / (off**2).sum()
    )
    mates = [
        {frozenset(pair) for batch in order.reshape(-1, 4).tolist() for pair in combinations(batch, 2)}
        for order in (np.arange(300), halves)
    ]
    assert found["mate_overlap"] == len(mates[0] & mates[1]) / len(mates[0] | mates[1])
    assert found["micro_batch_length_entropy"] == mixing.length_entropy(lengths, offsets)[0]
    assert found["window_length_entropy"] == mixing.length_entropy(lengths, np.append(offsets[::4], 300))[0]
    assert found["predicted_micro_batches"] == prediction.micro_batches(lengths, 60, np.array([5, 15]))


def test_what_there_is_nothing_to_take_from_is_left_out() -> None:
    lengths = np.array([3, 5, 2])
    plan = build(np.arange(3), np.array([0, 1, 3]), lengths, REQUEST)
    missing = MEASURES.keys() - measure_composition(plan, lengths, REQUEST).metrics.keys()
    assert missing == {"mate_overlap", "predicted_micro_batches"}


def test_what_a_plan_does_not_define_is_not_a_number() -> None:
    nothing = np.empty(0, dtype=np.int64)
    empty = build(nothing, np.array([0]), nothing, REQUEST)
    found = measure_composition(empty, nothing, REQUEST, empty, nothing).metrics
    assert {name: value for name, value in found.items() if not math.isnan(value)} == {
        "windows": 0,
        "micro_batches": 0,
        "predicted_micro_batches": 0,
        "distinct_shapes": 0,
        "squared_length_sum": 0,
        "largest_micro_batch": 0,
    }
    one = build(np.arange(2), np.array([0, 1, 2]), np.array([7, 7]), REQUEST)
    found = measure_composition(one, np.array([7, 7]), REQUEST).metrics
    undefined = {name for name, value in found.items() if math.isnan(value)}
    assert undefined == {"variance_ratio", "window_length_autocorrelation"}


def test_squares_beyond_64_bits() -> None:
    longest = 2**31 - 1
    lengths = np.full(8, longest)
    request = replace(REQUEST, token_budget=longest)
    for layout in ("padded", "packed"):
        plan = build(np.arange(8), np.arange(9), lengths, request, layout=layout)
        found = measure_composition(plan, lengths, request).metrics
        assert found["squared_length_sum"] == float(8 * longest**2)
        assert found["straggler_ratio"] == 1
