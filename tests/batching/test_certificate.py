from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from dflash.batching.certificate import check
from dflash.batching.plan import LEDGER, BatchPlan, IntArray, PlanRequest, Reason, ledger
from dflash.errors import PlanError

LENGTHS = np.array([3, 5, 2, 4, 1, 5], dtype=np.int64)
REQUEST = PlanRequest(token_budget=10, seed=0, epoch=0, drafters=2, accumulation=1, tail="spread")
RIGHT = BatchPlan(
    samples=np.array([1, 5, 0, 3, 4, 2]),
    batch_offsets=np.array([0, 2, 4, 5, 6]),
    window_offsets=np.array([0, 2, 4]),
    layout="padded",
    ids=np.array([100, 103, 104, 102, 101, 105]),
    ledger=np.empty(0, LEDGER),
)


def dropping(*rows: int, tokens: list[int] | None = None) -> BatchPlan:
    """The right plan with its last window in the ledger instead."""
    ids = RIGHT.ids[list(rows)]
    return replace(
        RIGHT,
        samples=RIGHT.samples[:4],
        batch_offsets=RIGHT.batch_offsets[:3],
        window_offsets=RIGHT.window_offsets[:2],
        ledger=ledger(ids, np.array(tokens or LENGTHS[list(rows)]), Reason.TAIL),
    )


def test_right_plans_pass() -> None:
    check(RIGHT, LENGTHS, REQUEST)
    check(replace(RIGHT, batch_offsets=np.array([0, 2, 4, 6, 6])), LENGTHS, REQUEST)
    check(dropping(4, 2), LENGTHS, replace(REQUEST, tail="drop"))
    cut = ledger(np.array([103, 999]), np.array([7, 50]), Reason.CUT)
    cut["reason"][1] = Reason.DROPPED
    check(replace(RIGHT, ledger=cut), LENGTHS, REQUEST)
    nothing = np.empty(0, dtype=np.int64)
    check(BatchPlan(nothing, np.array([0]), np.array([0]), "padded", nothing, RIGHT.ledger), nothing, REQUEST)


def test_packed_counts_the_sum() -> None:
    packed = replace(RIGHT, samples=np.array([1, 0, 2, 5, 3, 4]), batch_offsets=np.array([0, 3, 5, 6, 6]))
    with pytest.raises(PlanError, match="micro-batch 0 holds 15 padded tokens, over the budget of 10"):
        check(packed, LENGTHS, REQUEST)
    check(replace(packed, layout="packed"), LENGTHS, REQUEST)
    with pytest.raises(PlanError, match="micro-batch 0 holds 10 packed tokens, over the budget of 9"):
        check(replace(packed, layout="packed"), LENGTHS, replace(REQUEST, token_budget=9))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"samples": [1, 5, 0, 3, 4, 4]}, "1 samples are planned more than once: 101"),
        ({"samples": [1, 5, 0, 3, 4], "batch_offsets": [0, 2, 4, 5, 5]}, "neither planned nor .*: 104"),
        ({"samples": [1, 5, 0, 3, 4, 6]}, "outside the rows 0..5: 6"),
        ({"samples": [1, 5, 0, 3, 4, -1]}, "outside the rows 0..5: -1"),
        ({"batch_offsets": [0, 3, 4, 5, 6]}, "micro-batch 0 holds 15 padded .* samples 103, 105, 100"),
        ({"batch_offsets": [0, 2, 5, 4, 6]}, "batch_offsets must ascend from 0 to 6"),
        ({"batch_offsets": [0, 2, 4, 5, 7]}, "batch_offsets must ascend from 0 to 6, got 0..7"),
        ({"batch_offsets": [1, 2, 4, 5, 6]}, "batch_offsets must ascend"),
        ({"batch_offsets": []}, "batch_offsets must ascend from 0 to 6, got none"),
        ({"window_offsets": [0, 2]}, "window_offsets must ascend from 0 to 4, got 0..2"),
        ({"window_offsets": [0, 4]}, "window 0 has 4 micro-batches instead of A x M = 2: samples 103"),
        ({"window_offsets": [0, 1, 4]}, "window 0 has 1 micro-batches"),
        ({"window_offsets": [0, 2, 2, 4]}, "window 1 has 0 micro-batches .*: samples none"),
        ({"batch_offsets": [0, 2, 4, 5, 6, 6, 6], "window_offsets": [0, 2, 4, 6]}, "window 2 has no sample"),
        ({"ids": [100, 103, 104, 102, 101]}, "for 5 samples, but there are 6 lengths"),
        ({"ids": [100, 103, 104, 102, 100, 105]}, "1 store rows come twice in ids: 100"),
    ],
)
def test_a_broken_rule_is_named_with_the_samples(wrong: dict[str, list[int]], message: str) -> None:
    arrays: dict[str, Any] = {name: np.array(value, dtype=np.int64) for name, value in wrong.items()}
    plan = replace(RIGHT, **arrays)
    with pytest.raises(PlanError, match=message):
        check(plan, LENGTHS, REQUEST)


DROP = replace(REQUEST, tail="drop")


@pytest.mark.parametrize(
    ("plan", "request_", "message"),
    [
        (dropping(4, 2), REQUEST, "2 samples are dropped although tail=spread: 101, 104"),
        (dropping(4), DROP, "1 samples are neither planned nor in the ledger: 104"),
        (dropping(4, 2, 3), DROP, "1 samples are planned more than once: 102"),
        (dropping(4, 4, 2), DROP, "planned more than once: 101"),
        (dropping(4, 2, tokens=[1, 3]), DROP, "wrong token counts in the ledger: 104"),
        (dropping(4, 2), replace(DROP, token_budget=2), "more than A x M - 1 micro-batches hold"),
        (replace(RIGHT, ledger=ledger(np.array([7]), 1, Reason.CUT)), REQUEST, "were never kept: 7"),
        (replace(RIGHT, ledger=ledger(np.array([7]), 1, Reason.TAIL)), DROP, "were never kept: 7"),
        (replace(RIGHT, ledger=ledger(np.array([105]), 1, Reason.DROPPED)), REQUEST, "and planned: 105"),
        (replace(RIGHT, ledger=ledger(np.array([105]), 1, 9)), REQUEST, "unknown reason .*: 105"),  # type: ignore[arg-type]
    ],
)
def test_a_lying_ledger_is_refused(plan: BatchPlan, request_: PlanRequest, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        check(plan, LENGTHS, request_)


def test_at_most_five_ids_and_a_count() -> None:
    n = 1_000
    plan = replace(
        RIGHT,
        samples=np.zeros(n, dtype=np.int64),
        batch_offsets=np.arange(n + 1),
        window_offsets=np.arange(0, n + 1, 2),
        ids=np.arange(n),
    )
    with pytest.raises(PlanError) as raised:
        check(replace(plan, samples=np.arange(n) // 2), np.ones(n, dtype=np.int64), REQUEST)
    assert str(raised.value) == "500 samples are planned more than once: 0, 1, 2, 3, 4 and 495 more"


def is_right(plan: BatchPlan, lengths: IntArray, request: PlanRequest) -> bool:
    """The contract in plain Python, for plans whose ledger holds nothing but the tail."""
    batches, windows = plan.batch_offsets.tolist(), plan.window_offsets.tolist()
    for offsets, end in ((batches, len(plan.samples)), (windows, len(batches) - 1)):
        if not offsets or offsets != sorted(offsets) or (offsets[0], offsets[-1]) != (0, end):
            return False
    samples = [plan.samples[a:b].tolist() for a, b in pairwise(batches)]
    for a, b in pairwise(windows):
        if b - a != request.window_size or not any(samples[a:b]):
            return False
    row_of = {id_: row for row, id_ in enumerate(plan.ids.tolist())}
    dropped = [row_of[id_] for id_ in plan.ledger["id"].tolist()]
    if dropped and request.tail != "drop":
        return False
    times = Counter(sample for batch in samples for sample in batch) + Counter(dropped)
    if times != Counter(range(len(lengths))):
        return False
    return all(len(batch) * max(lengths[batch]) <= request.token_budget for batch in samples if batch)


ARRAYS = ["samples", "batch_offsets", "window_offsets"]


@settings(max_examples=400, deadline=None)
@given(st.data(), st.sampled_from([RIGHT, dropping(4, 2)]), st.sampled_from(["spread", "drop"]))
def test_agrees_with_plain_python_on_damaged_plans(data: st.DataObject, plan: BatchPlan, tail: Any) -> None:
    request = replace(REQUEST, tail=tail, token_budget=data.draw(st.sampled_from([8, 10, 100])))
    for _ in range(data.draw(st.integers(0, 2))):
        name = data.draw(st.sampled_from(ARRAYS))
        values = getattr(plan, name).tolist()
        place = data.draw(st.integers(0, len(values) - 1))
        damage = data.draw(st.sampled_from(["change", "swap", "remove", "repeat"]))
        if damage == "change":
            values[place] += data.draw(st.sampled_from([-2, -1, 1, 2]))
        elif damage == "swap":
            other = data.draw(st.integers(0, len(values) - 1))
            values[place], values[other] = values[other], values[place]
        elif damage == "remove":
            del values[place]
        else:
            values.insert(place, values[place])
        damaged: dict[str, Any] = {name: np.array(values, dtype=np.int64)}
        plan = replace(plan, **damaged)
        if not values:
            break
    right = is_right(plan, LENGTHS, request)
    event(f"right: {right}")
    if right:
        check(plan, LENGTHS, request)
    else:
        with pytest.raises(PlanError):
            check(plan, LENGTHS, request)
