"""A strategy planning every case, with an eye on what else it does meanwhile."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dflash.batching.plan import BatchPlan, Reason, Strategy
from dflash.testing.cases import Case, contract_cases, large_case
from dflash.testing.fresh_process import digests


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came of one case: a plan whose arrays fit together, or the flaw that spoils it."""

    case: Case
    plan: BatchPlan | None
    flaw: str = ""
    wrote: bool = False  # to the lengths
    drew: bool = False  # from a global generator


class Rehearsal:
    """All outcomes of a strategy, each made once and only when a rule asks for it."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy

    @cached_property
    def outcomes(self) -> list[Outcome]:
        """Of all cases but the large one."""
        return [self.plan(case) for case in contract_cases()]

    @cached_property
    def large(self) -> Outcome:
        return self.plan(large_case())

    @cached_property
    def repeatable(self) -> bool:
        """Whether the same plans come of the same cases, asked twice in this process."""
        return digests(self.strategy) == digests(self.strategy)

    def plan(self, case: Case) -> Outcome:
        # Writeable, unlike in training: what writes to the lengths is to be told so, not to stumble.
        lengths = case.lengths.copy()
        before = _global_generators()
        plan, flaw = None, ""
        try:
            returned = self.strategy.plan(lengths, case.request)
            flaw = _flaw(returned, case)
            plan = None if flaw else returned
        except Exception as error:  # whatever foreign code raises
            flaw = " ".join(f"raised {type(error).__name__}: {error}".split())
        wrote = not np.array_equal(lengths, case.lengths)
        # A plan for lengths that were changed on the way says nothing about these ones.
        return Outcome(case, None if wrote else plan, flaw, wrote, drew=before != _global_generators())


def _global_generators() -> tuple[object, ...]:
    state: dict[str, Any] = np.random.get_state(legacy=False)  # noqa: NPY002
    return random.getstate(), state["state"]["key"].tobytes(), state["state"]["pos"], state["has_gauss"]


def _flaw(plan: object, case: Case) -> str:
    """Why the arrays do not fit together, so that nothing else can be said of the plan; empty if they do."""
    if not isinstance(plan, BatchPlan):
        return f"returned a {type(plan).__name__} instead of a BatchPlan"
    n = len(case.lengths)
    ends = {"batch_offsets": len(plan.samples), "window_offsets": plan.batches}
    for name, end in ends.items():
        offsets = getattr(plan, name)
        if not len(offsets) or offsets[0] != 0 or offsets[-1] != end or np.any(np.diff(offsets) < 0):
            return f"{name} do not ascend from 0 to {end}"
    for name, rows in {"samples": plan.samples, "the ledger": plan.ledger["id"]}.items():
        if np.any((rows < 0) | (rows >= n)):
            return f"{name} holds rows outside 0..{n - 1}"
    if not np.array_equal(plan.ids, np.arange(n)):
        return f"ids are not the row numbers 0..{n - 1}"
    if np.any(plan.ledger["reason"] != Reason.TAIL):
        return "the ledger holds others than those that the tail dropped"
    return ""
