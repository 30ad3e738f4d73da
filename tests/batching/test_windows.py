from __future__ import annotations

from fractions import Fraction
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dflash.batching.plan import BatchPlan, IntArray, PlanRequest, Reason
from dflash.batching.windows import assign, assign_all, build, costs, spread
from dflash.errors import PlanError

ROWS = st.lists(st.integers(0, 6), max_size=25)


def request(drafters: int = 1, accumulation: int = 1, **changes: Any) -> PlanRequest:
    fields = {"token_budget": 10**6, "seed": 0, "epoch": 0, "tail": "spread"}
    return PlanRequest(drafters=drafters, accumulation=accumulation, **{**fields, **changes})


def micro_batches(rows: list[int]) -> tuple[IntArray, IntArray, IntArray]:
    """Samples in reverse, so that a row number is never its place; offsets; and some lengths."""
    samples = np.arange(sum(rows), dtype=np.int64)[::-1].copy()
    return samples, np.cumsum([0, *rows], dtype=np.int64), np.arange(sum(rows), dtype=np.int64) % 7 + 1


def batches_of(plan: BatchPlan) -> list[list[int]]:
    return [plan.batch(number).tolist() for number in range(plan.batches)]


def spread_naively(batches: list[list[int]], size: int) -> list[list[int]]:
    """The rule as design.md states it, on lists."""
    last = batches[len(batches) // size * size :]
    while len(last) < size and max(map(len, last), default=0) > 1:
        widest = max(range(len(last)), key=lambda number: (len(last[number]), -number))
        half = (len(last[widest]) + 1) // 2
        last[widest : widest + 1] = [last[widest][:half], last[widest][half:]]
    last += [[]] * (size - len(last)) if last else []
    return batches[: len(batches) // size * size] + last


@settings(deadline=None)
@given(ROWS, st.integers(1, 8), st.integers(1, 3), st.sampled_from(["spread", "pad", "drop"]))
def test_windows_are_exact_and_nothing_is_lost(rows: list[int], m: int, a: int, tail: Any) -> None:
    samples, offsets, lengths = micro_batches(rows)
    plan = build(samples, offsets, lengths, request(m, a, tail=tail), order="given")
    assert np.diff(plan.window_offsets).tolist() == [a * m] * plan.windows
    assert plan.window_offsets[-1] == plan.batches
    given = [samples[start:end].tolist() for start, end in pairwise(offsets.tolist())]
    whole = len(given) // (a * m) * (a * m)
    batches = batches_of(plan)
    if tail == "spread":
        assert batches == spread_naively(given, a * m)
        assert plan.windows == -(-len(given) // (a * m))
    elif tail == "pad":
        assert batches == given + [[]] * (-len(given) % (a * m))
    else:
        assert batches == given[:whole]
    left = [sample for batch in given[whole:] for sample in batch] if tail == "drop" else []
    assert plan.ledger["id"].tolist() == left
    assert plan.ledger["tokens"].tolist() == lengths[left].tolist()
    assert set(plan.ledger["reason"].tolist()) <= {Reason.TAIL}
    assert plan.ids.tolist() == list(range(len(lengths)))


def test_spread_by_hand() -> None:
    assert spread(np.array([0, 3, 5]), 4).tolist() == [0, 1, 2, 3, 5]  # rows 3, 2 -> 2, 1, 2 -> 1, 1, 1, 2
    assert spread(np.array([0, 5, 6, 8]), 2).tolist() == [0, 5, 6, 7, 8]
    assert spread(np.array([0, 2]), 4).tolist() == [0, 1, 2, 2, 2]
    assert spread(np.array([0]), 4).tolist() == [0]
    assert spread(np.array([0, 1, 2]), 2).tolist() == [0, 1, 2]


@settings(deadline=None)
@given(ROWS, st.integers(0, 5))
def test_shuffled_moves_micro_batches_whole(rows: list[int], epoch: int) -> None:
    samples, offsets, lengths = micro_batches(rows)
    given = [samples[start:end].tolist() for start, end in pairwise(offsets.tolist())]
    plan = build(samples, offsets, lengths, request(epoch=epoch), order="shuffled")
    assert sorted(batches_of(plan)) == sorted(given)


def test_the_shuffle_follows_seed_and_epoch() -> None:
    pieces = micro_batches([2] * 40)
    digests = [
        build(*pieces, request(seed=seed, epoch=epoch)).digest()
        for seed, epoch in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    ]
    assert len(set(digests)) == len(digests)
    assert build(*pieces, request(seed=1, epoch=1)).digest() == digests[3]


@given(ROWS, st.data())
def test_an_order_of_one_s_own(rows: list[int], data: st.DataObject) -> None:
    samples, offsets, lengths = micro_batches(rows)
    given = [samples[start:end].tolist() for start, end in pairwise(offsets.tolist())]
    order = data.draw(st.permutations(range(len(given))))
    plan = build(samples, offsets, lengths, request(), order=np.array(order, dtype=np.int64))
    assert batches_of(plan) == [given[number] for number in order]


@settings(deadline=None)
@given(ROWS, st.sampled_from(["spread", "pad", "drop"]))
def test_only_the_product_of_a_and_m_matters(rows: list[int], tail: Any) -> None:
    pieces = micro_batches(rows)
    plans = [build(*pieces, request(m, 12 // m, tail=tail)) for m in (1, 2, 3, 4, 6, 12)]
    assert len({plan.digest() for plan in plans}) == 1


def cost(lengths: list[int], attention_length: int) -> int:
    longest = max(lengths, default=0)
    return len(lengths) * longest * (attention_length + longest)


def window_of(batches: list[list[int]], drafters: int) -> tuple[BatchPlan, IntArray]:
    """A plan of one window, its micro-batches given by their lengths."""
    flat = np.array([length for batch in batches for length in batch], dtype=np.int64)
    offsets = np.cumsum([0, *map(len, batches)], dtype=np.int64)
    rows = np.arange(len(flat), dtype=np.int64)
    asked = request(drafters, len(batches) // drafters)
    return build(rows, offsets, flat, asked, order="given"), flat


def makespan(taken: IntArray, costs: list[int]) -> int:
    columns: list[list[int]] = taken.T.tolist()
    return max(sum(costs[number] for number in column) for column in columns)


def best_makespan(costs: list[int], drafters: int) -> int:
    each = len(costs) // drafters
    return min(
        max(sum(order[start : start + each]) for start in range(0, len(order), each))
        for order in set(permutations(costs))
    )


BATCH = st.lists(st.integers(1, 50), min_size=1, max_size=3)


@settings(deadline=None)
@given(st.data(), st.integers(1, 8), st.integers(1, 4), st.integers(1, 100))
def test_each_drafter_takes_a_and_no_micro_batch_is_taken_twice(
    data: st.DataObject, m: int, a: int, attention_length: int
) -> None:
    batches = data.draw(st.lists(BATCH, min_size=a * m, max_size=a * m))
    plan, lengths = window_of(batches, m)
    taken = assign(plan, 0, m, lengths, attention_length)
    assert taken.shape == (a, m)
    assert taken.dtype == np.int64
    assert sorted(taken.ravel().tolist()) == list(range(a * m))
    costs = [cost(batch, attention_length) for batch in batches]
    for column in taken.T.tolist():  # each drafter's costliest first
        assert [costs[number] for number in column] == sorted((costs[n] for n in column), reverse=True)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(1, 3))
def test_two_for_each_drafter_is_optimal(data: st.DataObject, m: int) -> None:
    """With A = 2 the rule pairs the costliest with the cheapest, which no assignment beats."""
    batches = data.draw(st.lists(BATCH, min_size=2 * m, max_size=2 * m))
    plan, lengths = window_of(batches, m)
    costs = [cost(batch, 10) for batch in batches]
    assert makespan(assign(plan, 0, m, lengths, 10), costs) == best_makespan(costs, m)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from([(2, 3), (2, 4), (3, 2)]))
def test_graham_s_bound_where_the_count_does_not_bind(data: st.DataObject, shape: tuple[int, int]) -> None:
    """Plain LPT is within 4/3 - 1/(3M) of the optimum; it is the same rule if it gives A to each anyway."""
    m, a = shape
    batches = data.draw(st.lists(BATCH, min_size=a * m, max_size=a * m))
    costs = [cost(batch, 10) for batch in batches]
    loads, counts = [0] * m, [0] * m
    for one in sorted(costs, reverse=True):
        drafter = loads.index(min(loads))
        loads[drafter] += one
        counts[drafter] += 1
    assume(set(counts) == {a})
    plan, lengths = window_of(batches, m)
    span = makespan(assign(plan, 0, m, lengths, 10), costs)
    assert span == max(loads)
    assert span <= (Fraction(4, 3) - Fraction(1, 3 * m)) * best_makespan(costs, m)


def test_assignment_by_hand() -> None:
    # Costs rows x longest x (10 + longest): 400, 75, 24, 75, 200, 11 with attention length 10.
    plan, lengths = window_of([[10, 10], [5], [2], [5], [10], [1]], 2)
    # Drafter 0: 400; drafter 1: 200, 75, 75 and is full; drafter 0 takes the rest.
    assert assign(plan, 0, 2, lengths, 10).tolist() == [[0, 4], [2, 1], [5, 3]]


def test_equal_costs_go_to_the_smaller_index() -> None:
    plan, lengths = window_of([[5]] * 6, 3)
    assert assign(plan, 0, 3, lengths, 10).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_packed_documents_attend_to_themselves_only() -> None:
    asked = request(1, 2)
    lengths = np.array([30, 10, 10, 10, 10], dtype=np.int64)
    offsets = np.array([0, 1, 5], dtype=np.int64)
    plan = build(np.arange(5), offsets, lengths, asked, order="given", layout="packed")
    # 30 x (1 + 30) = 930 is more than 4 x 10 x (1 + 10) = 440, as 40 x (1 + 40) would not be.
    assert assign(plan, 0, 1, lengths, 1).tolist() == [[0], [1]]


def test_huge_costs_do_not_overflow() -> None:
    longest = 2**31 - 1
    plan, lengths = window_of([[longest], [1], [longest], [longest]], 2)
    assert assign(plan, 0, 2, lengths, longest).tolist() == [[0, 2], [3, 1]]


def test_a_window_that_cannot_be_shared() -> None:
    plan, lengths = window_of([[5]] * 4, 2)
    with pytest.raises(PlanError, match="4 micro-batches cannot be shared by 3 drafters"):
        assign(plan, 0, 3, lengths, 10)


@given(st.data(), st.sampled_from(["padded", "packed"]), st.integers(1, 3), st.integers(1, 3))
def test_all_windows_at_once(data: st.DataObject, layout: Any, m: int, a: int) -> None:
    batches = data.draw(st.lists(st.lists(st.integers(1, 50), max_size=3), max_size=20))
    flat = np.array([length for batch in batches for length in batch], dtype=np.int64)
    offsets = np.cumsum([0, *map(len, batches)], dtype=np.int64)
    rows = np.arange(len(flat), dtype=np.int64)
    plan = build(rows, offsets, flat, request(m, a, tail="pad"), order="given", layout=layout)
    taken = assign_all(plan, m, flat, 10)
    assert taken.dtype == np.int64
    assert taken.tolist() == [assign(plan, number, m, flat, 10).tolist() for number in range(plan.windows)]
    per_batch = [flat[plan.batch(number)].tolist() for number in range(plan.batches)]
    expected = [
        cost(batch, 10) if layout == "padded" else sum(cost([length], 10) for length in batch)
        for batch in per_batch
    ]
    assert costs(plan, flat, 10).tolist() == expected


def test_windows_that_cannot_be_shared() -> None:
    plan, lengths = window_of([[5]] * 4, 2)
    with pytest.raises(PlanError, match="4 micro-batches cannot be shared by 3 drafters"):
        assign_all(plan, 3, lengths, 10)
