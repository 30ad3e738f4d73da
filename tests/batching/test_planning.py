from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.batching import packing, windows
from dflash.batching.certificate import check
from dflash.batching.plan import BatchPlan, IntArray, PlanRequest, Reason, ledger
from dflash.batching.planning import make_plan
from dflash.errors import PlanError, UsageError

REQUEST = PlanRequest(token_budget=100, seed=0, epoch=0, drafters=2, accumulation=2, tail="spread")


@dataclass(frozen=True)
class InOrder:
    """The simplest strategy, and what becomes of its plan before it is returned."""

    then: Callable[[BatchPlan], Any] = lambda plan: plan

    def plan(self, lengths: IntArray, request: PlanRequest) -> BatchPlan:
        samples = np.arange(len(lengths))
        offsets = packing.greedy(lengths, samples, request.token_budget)
        return self.then(windows.build(samples, offsets, lengths, request, order="given"))  # type: ignore[no-any-return]


def test_the_plan_speaks_of_store_rows() -> None:
    plan, lengths = make_plan(InOrder(), [30, 40, 50, 60], REQUEST, ids=[7, 3, 9, 4])
    assert plan.ids[plan.samples].tolist() == [7, 3, 9, 4]
    assert lengths.tolist() == [30, 40, 50, 60]
    check(plan, lengths, REQUEST)
    assert make_plan(InOrder(), [30, 40, 50, 60], REQUEST)[0].ids.tolist() == [0, 1, 2, 3]


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 250), min_size=1, max_size=40).filter(lambda lengths: min(lengths) <= 100),
    st.sampled_from(["drop", "truncate"]),
    st.sampled_from(["spread", "pad", "drop"]),
)
def test_every_token_is_in_the_plan_or_in_the_ledger(lengths: list[int], overlong: Any, tail: Any) -> None:
    ids = np.random.default_rng(len(lengths)).permutation(1_000)[: len(lengths)]
    request = replace(REQUEST, tail=tail)
    plan, kept = make_plan(InOrder(), lengths, request, ids=ids, overlong=overlong)
    planned = int(kept[plan.samples].sum())
    assert planned + plan.ledger["tokens"].sum() == sum(lengths)
    by_id = dict(zip(ids.tolist(), lengths, strict=True))
    for id_, tokens, reason in plan.ledger.tolist():
        expected = {
            Reason.DROPPED: by_id[id_],
            Reason.CUT: by_id[id_] - 100,
            Reason.TAIL: min(by_id[id_], 100),
        }
        assert tokens == expected[Reason(reason)]
    long = {id_ for id_, length in by_id.items() if length > 100}
    reason = Reason.DROPPED if overlong == "drop" else Reason.CUT
    assert set(plan.ledger["id"][plan.ledger["reason"] == reason].tolist()) == long
    trained = plan.ids[plan.samples].tolist()
    assert all(kept[sample] == min(by_id[plan.ids[sample]], 100) for sample in plan.samples)
    assert long.isdisjoint(trained) or overlong == "truncate"


def test_overlong_samples_are_an_error_unless_a_policy_is_set() -> None:
    lengths = [50] * 3 + [101, 200] * 4
    with pytest.raises(PlanError) as raised:
        make_plan(InOrder(), lengths, REQUEST, ids=range(20, 31))
    assert str(raised.value) == (
        "8 samples exceed the token budget 100: 23, 24, 25, 26, 27 and 3 more; "
        "raise it to 200, or set overlong to drop or truncate"
    )


@pytest.mark.parametrize("overlong", ["error", "drop"])
def test_a_budget_below_the_shortest_sample(overlong: Any) -> None:
    """fairseq#347: a tiny budget made an empty micro-batch."""
    with pytest.raises(PlanError, match=r"^the token budget 100 is below the shortest sample \(120 tokens\)"):
        make_plan(InOrder(), [500, 120, 130], REQUEST, overlong=overlong)


def test_all_samples_may_be_cut() -> None:
    """torchtune PR#1697: a sample of more than twice the budget crashed."""
    plan, lengths = make_plan(InOrder(), [500, 120], REQUEST, overlong="truncate")
    assert lengths.tolist() == [100, 100]
    assert plan.ledger.tolist() == [(0, 400, Reason.CUT), (1, 20, Reason.CUT)]


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([3.0, 4.0], r"lengths must be a 1-D array of integers, got float64\[2\]"),
        ([], r"integers, got float64\[0\]"),
        ([True, False], "got bool"),
        ([[1, 2], [3, 4]], r"got int64\[2, 2\]"),
        (["3"], "got <U1"),
        ([2**63], "must fit 64 bits"),
        ([5, 0, 3, 0], r"2 samples have no tokens \(length 0\): 1, 3; leave them out"),
        ([0, 0, 0], "3 samples have no tokens"),
        ([5, -2], r"1 samples have no tokens \(length -2\): 1"),
    ],
)
def test_lengths_that_are_none(lengths: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message) as raised:
        make_plan(InOrder(), lengths, REQUEST)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("ids", "message"),
    [([1], "1 ids for 2 lengths"), ([4, 4], "twice in ids: 4"), ([0.0, 1.0], "ids must be .* float64")],
)
def test_ids_that_are_none(ids: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make_plan(InOrder(), [5, 6], REQUEST, ids=ids)


def test_an_unknown_policy() -> None:
    with pytest.raises(UsageError, match="overlong='cut': expected one of error, drop, truncate"):
        make_plan(InOrder(), [5], REQUEST, overlong="cut")  # type: ignore[arg-type]


def test_no_samples_give_no_window() -> None:
    plan, lengths = make_plan(InOrder(), np.empty(0, dtype=np.int64), REQUEST)
    assert (plan.windows, plan.batches, len(lengths)) == (0, 0, 0)


@pytest.mark.parametrize("dtype", [np.int32, np.uint16, np.uint64, np.int64])
def test_any_integers_make_the_same_plan_and_are_not_written(dtype: Any) -> None:
    lengths = np.array([30, 40, 50, 60, 99], dtype=dtype)
    plan, used = make_plan(InOrder(), lengths, REQUEST)
    assert lengths.flags.writeable
    assert lengths.tolist() == [30, 40, 50, 60, 99]
    assert used.dtype == np.int64
    assert not used.flags.writeable
    assert plan.digest() == make_plan(InOrder(), [30, 40, 50, 60, 99], REQUEST)[0].digest()


def raising(error: Exception) -> Callable[[BatchPlan], Any]:
    def then(_: BatchPlan) -> Any:
        raise error

    return then


def move_a_sample(plan: BatchPlan) -> BatchPlan:
    return replace(plan, batch_offsets=np.array([0, *plan.batch_offsets[2:], len(plan.samples)]))


@pytest.mark.parametrize(
    ("then", "message"),
    [
        (raising(KeyError("x")), "strategy 'mine' failed: KeyError: 'x'"),
        (raising(RuntimeError("two\nlines")), "strategy 'mine' failed: RuntimeError: two lines"),
        (lambda _: None, "strategy 'mine' returned a wrong plan: expected a BatchPlan, got NoneType"),
        (lambda _: ([0], [0, 1]), "expected a BatchPlan, got tuple"),
        (lambda p: replace(p, samples=np.zeros_like(p.samples)), "1 samples are planned more than once: 50"),
        (lambda p: replace(p, window_offsets=p.window_offsets[:1]), "window_offsets must ascend"),
        (move_a_sample, "micro-batch 0 holds 180 padded tokens, over the budget of 100: samples 50, 51, 52"),
        (lambda p: replace(p, ids=p.ids + 1), r"ids must be the row numbers 0\.\.7"),
        (lambda p: replace(p, ledger=ledger(np.array([0]), 5, Reason.CUT)), "its ledger may only hold"),
        (lambda p: replace(p, ledger=ledger(np.array([8]), 5, Reason.TAIL)), "its ledger may only hold"),
        (lambda p: replace(p, ledger=ledger(np.array([-1]), 5, Reason.TAIL)), "its ledger may only hold"),
        (lambda p: replace(p, ledger=ledger(np.array([0]), 30, Reason.TAIL)), "dropped although tail=spread"),
        (lambda p: replace(p, samples=p.samples.astype(np.int32)), "PlanError: BatchPlan.samples must be"),
    ],
)
def test_a_wrong_strategy_is_refused_by_name(then: Callable[[BatchPlan], Any], message: str) -> None:
    lengths = [30, 40, 60, 50, 60, 70, 80, 99]
    with pytest.raises(PlanError, match=message) as raised:
        make_plan(InOrder(then), lengths, REQUEST, ids=range(50, 58), name="mine")
    assert str(raised.value).startswith("strategy 'mine' ")
    assert "\n" not in str(raised.value)


def test_the_strategy_s_own_error_is_the_cause() -> None:
    error = KeyError("x")
    with pytest.raises(PlanError, match="strategy 'InOrder' failed") as raised:
        make_plan(InOrder(raising(error)), [5], REQUEST)
    assert raised.value.__cause__ is error


def test_lengths_cannot_be_written_by_a_strategy() -> None:
    @dataclass(frozen=True)
    class Writes:
        def plan(self, lengths: IntArray, request: PlanRequest) -> BatchPlan:
            lengths.sort()
            return InOrder().plan(lengths, request)

    with pytest.raises(PlanError, match=r"strategy 'Writes' failed: ValueError: .*read-only"):
        make_plan(Writes(), [5, 4, 3], REQUEST)


def test_interrupts_are_not_the_strategy_s() -> None:
    def interrupt(_: BatchPlan) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_plan(InOrder(interrupt), [5], REQUEST)
