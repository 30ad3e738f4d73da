"""The one way to get a plan: overlong samples settled first, the strategy called, its plan certified."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from dflash.batching import certificate
from dflash.batching.certificate import few
from dflash.batching.plan import LEDGER, BatchPlan, IntArray, PlanRequest, Reason, Strategy, ledger
from dflash.errors import PlanError, UsageError

Overlong = Literal["error", "drop", "truncate"]


def make_plan(
    strategy: Strategy,
    lengths: npt.ArrayLike,
    request: PlanRequest,
    *,
    ids: npt.ArrayLike | None = None,
    overlong: Overlong = "error",
    name: str | None = None,
) -> tuple[BatchPlan, IntArray]:
    """A certified plan, and the lengths that its samples have in it: int64[k], read-only.

    lengths: integers [n], real tokens of each sample, at least 1.
    ids: integers [n], the store row of each length, none twice; 0..n-1 if not given.
    overlong: what becomes of samples longer than the token budget. Dropped and cut ones go into the
        ledger; the returned lengths have the dropped left out and the cut shortened.
    name: what errors call the strategy.

    No lengths give a plan of no window. Raises PlanError for lengths, ids or a budget that cannot be
    planned, for whatever the strategy raises, and for a plan that breaks the contract.
    """
    if overlong not in get_args(Overlong):
        raise UsageError(f"overlong={overlong!r}: expected one of {', '.join(get_args(Overlong))}")
    name = name or type(strategy).__name__
    lengths = _integers("lengths", lengths)
    ids = np.arange(len(lengths), dtype=np.int64) if ids is None else _integers("ids", ids)
    _check_input(lengths, ids)
    lengths, ids, entries = _settle_overlong(lengths, ids, request.token_budget, overlong)
    lengths.flags.writeable = False
    try:
        plan = strategy.plan(lengths, request)
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise PlanError(f"strategy {name!r} failed: {what}") from error
    try:
        plan = _with_store_rows(plan, ids, entries)
        certificate.check(plan, lengths, request)
    except PlanError as error:
        raise PlanError(f"strategy {name!r} returned a wrong plan: {error}") from None
    return plan, lengths


def _integers(what: str, values: npt.ArrayLike) -> IntArray:
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise PlanError(f"{what} must be a 1-D array of integers, got {array.dtype}{list(array.shape)}")
    if array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise PlanError(f"{what} must fit 64 bits, got {array.max()}")
    return array.astype(np.int64)


def _check_input(lengths: IntArray, ids: IntArray) -> None:
    if len(ids) != len(lengths):
        raise PlanError(f"{len(ids)} ids for {len(lengths)} lengths")
    ordered = np.sort(ids)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise PlanError(f"store rows come twice in ids: {few(twice)}")
    short = np.flatnonzero(lengths < 1)
    if len(short):
        raise PlanError(
            f"{len(short)} samples have no tokens (length {lengths[short[0]]}): "
            f"{few(ids[short])}; leave them out of the store"
        )


def _settle_overlong(
    lengths: IntArray, ids: IntArray, token_budget: int, overlong: Overlong
) -> tuple[IntArray, IntArray, npt.NDArray[np.void]]:
    """What the strategy sees: lengths and ids of the kept samples, and the ledger of the others."""
    long = lengths > token_budget
    if not long.any():
        return lengths, ids, np.empty(0, LEDGER)
    if overlong == "truncate":
        entries = ledger(ids[long], lengths[long] - token_budget, Reason.CUT)
        return np.minimum(lengths, token_budget), ids, entries
    if long.all():
        raise PlanError(
            f"the token budget {token_budget} is below the shortest sample ({lengths.min()} tokens): raise it"
        )
    if overlong == "drop":
        return lengths[~long], ids[~long], ledger(ids[long], lengths[long], Reason.DROPPED)
    raise PlanError(
        f"{long.sum()} samples exceed the token budget {token_budget}: {few(ids[long])}; "
        f"raise it to {lengths.max()}, or set overlong to drop or truncate"
    )


def _with_store_rows(plan: object, ids: IntArray, entries: npt.NDArray[np.void]) -> BatchPlan:
    """The strategy's plan with store rows for row numbers, its ledger joined to the framework's."""
    if not isinstance(plan, BatchPlan):
        raise PlanError(f"expected a BatchPlan, got {type(plan).__name__}")
    if not np.array_equal(plan.ids, np.arange(len(ids))):
        raise PlanError(f"ids must be the row numbers 0..{len(ids) - 1}, as windows.build makes them")
    tail = plan.ledger.copy()
    if np.any((tail["reason"] != Reason.TAIL) | (tail["id"] < 0) | (tail["id"] >= len(ids))):
        raise PlanError("its ledger may only hold rows that the tail dropped")
    tail["id"] = ids[tail["id"]]
    return replace(plan, ids=ids, ledger=np.concatenate([entries, tail]))
