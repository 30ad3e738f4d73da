"""Proof that a plan keeps the contract, or the exact place where it does not."""

from __future__ import annotations

import numpy as np

from dflash.batching.composition import measure
from dflash.batching.plan import BatchPlan, IntArray, PlanRequest, Reason
from dflash.errors import PlanError


def check(plan: BatchPlan, lengths: IntArray, request: PlanRequest) -> None:
    """Prove `plan` right for `lengths` (int64[n], kept samples, already cut) and `request`.

    Every kept sample is trained exactly once, or, if the tail is dropped, is in the ledger; every
    micro-batch is within the budget (rows x longest if padded, sum if packed); every window has exactly
    A x M micro-batches and at least one sample. Arrays are int64 since BatchPlan takes no others.

    Raises PlanError with the broken rule and the first few store rows.
    """
    if len(plan.ids) != len(lengths):
        raise PlanError(f"the plan is for {len(plan.ids)} samples, but there are {len(lengths)} lengths")
    _check_offsets("batch_offsets", plan.batch_offsets, len(plan.samples))
    _check_offsets("window_offsets", plan.window_offsets, plan.batches)
    outside = (plan.samples < 0) | (plan.samples >= len(lengths))
    _refuse(f"are outside the rows 0..{len(lengths) - 1}", plan.samples[outside])
    _check_windows(plan, request.window_size)
    _check_coverage(plan, _tail_rows(plan, lengths, request))
    _check_budget(plan, lengths, request.token_budget)


def few(ids: IntArray) -> str:
    """The first five of some store rows, and how many more there are."""
    more = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
    return ", ".join(map(str, ids[:5].tolist())) + more


def _check_offsets(name: str, offsets: IntArray, end: int) -> None:
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != end or np.any(np.diff(offsets) < 0):
        got = f"{offsets[0]}..{offsets[-1]}" if len(offsets) else "none"
        raise PlanError(f"{name} must ascend from 0 to {end}, got {got} in {len(offsets)} steps")


def _check_windows(plan: BatchPlan, window_size: int) -> None:
    sizes = np.diff(plan.window_offsets)
    rows = np.diff(plan.batch_offsets[plan.window_offsets])
    for number in np.flatnonzero((sizes != window_size) | (rows == 0))[:1].tolist():
        if sizes[number] == window_size:
            raise PlanError(f"window {number} has no sample")
        window = plan.window(number)
        samples = plan.samples[plan.batch_offsets[window.start] : plan.batch_offsets[window.stop]]
        raise PlanError(
            f"window {number} has {len(window)} micro-batches instead of A x M = {window_size}: "
            f"samples {few(plan.ids[samples]) or 'none'}"
        )


def _check_coverage(plan: BatchPlan, tail: IntArray) -> None:
    times = np.bincount(plan.samples, minlength=len(plan.ids))
    np.add.at(times, tail, 1)
    _refuse("are planned more than once", plan.ids[times > 1])
    _refuse("are neither planned nor in the ledger", plan.ids[times == 0])


def _tail_rows(plan: BatchPlan, lengths: IntArray, request: PlanRequest) -> IntArray:
    """Check ids and ledger; return the rows, int64[t], that the ledger says the tail dropped."""
    by_id = np.argsort(plan.ids, kind="stable")
    ids = plan.ids[by_id]
    twice = ids[1:][ids[1:] == ids[:-1]]
    if len(twice):
        raise PlanError(f"{len(twice)} store rows come twice in ids: {few(twice)}")
    id_, tokens, reason = plan.ledger["id"], plan.ledger["tokens"], plan.ledger["reason"]
    kept = np.searchsorted(ids, id_) < np.searchsorted(ids, id_, side="right")
    _refuse("for an unknown reason are in the ledger", id_[~np.isin(reason, list(Reason))])
    _refuse("are in the ledger as dropped, and planned", id_[kept & (reason == Reason.DROPPED)])
    _refuse("are in the ledger, but were never kept", id_[~kept & (reason != Reason.DROPPED)])
    tail = reason == Reason.TAIL
    if request.tail != "drop":
        _refuse(f"are dropped although tail={request.tail}", id_[tail])
    rows: IntArray = by_id[np.searchsorted(ids, id_[tail])]
    _refuse("have wrong token counts in the ledger", id_[tail][tokens[tail] != lengths[rows]])
    if tokens[tail].sum() > (request.window_size - 1) * request.token_budget:
        _refuse("are dropped, more than A x M - 1 micro-batches hold", id_[tail])
    return rows


def _refuse(rule: str, ids: IntArray) -> None:
    if len(ids):
        raise PlanError(f"{len(ids)} samples {rule}: {few(ids)}")


def _check_budget(plan: BatchPlan, lengths: IntArray, token_budget: int) -> None:
    tokens = measure(plan, lengths).padded_tokens
    for number in np.flatnonzero(tokens > token_budget)[:1].tolist():
        raise PlanError(
            f"micro-batch {number} holds {tokens[number]} {plan.layout} tokens, over the budget of "
            f"{token_budget}: samples {few(plan.ids[plan.batch(number)])}"
        )
