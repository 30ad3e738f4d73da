"""What can be wrong with one plan: each check says so in a line, or nothing if all is well.

They count for themselves instead of asking the certificate, which has the last word as a check of its own:
what either of them overlooks, the other one may see.
"""

from __future__ import annotations

import numpy as np

from dflash.batching import certificate
from dflash.batching.certificate import few
from dflash.batching.plan import BatchPlan
from dflash.errors import PlanError
from dflash.testing.cases import Case


def not_once(plan: BatchPlan, case: Case) -> str:
    """Every sample once, or in the ledger."""
    rows = np.concatenate([plan.samples, plan.ledger["id"]])
    times = np.bincount(rows, minlength=len(case.lengths))
    if np.any(times > 1):
        return f"repeats samples {few(np.flatnonzero(times > 1))}"
    if np.any(times == 0):
        return f"loses samples {few(np.flatnonzero(times == 0))}"
    return ""


def over_budget(plan: BatchPlan, case: Case) -> str:
    """No micro-batch over the token budget, padded or packed as the layout says."""
    rows = np.diff(plan.batch_offsets)
    numbers = np.flatnonzero(rows)
    if not len(numbers):
        return ""
    lengths, starts = case.lengths[plan.samples], plan.batch_offsets[numbers]
    if plan.layout == "packed":
        tokens = np.add.reduceat(lengths, starts)
    else:
        tokens = rows[numbers] * np.maximum.reduceat(lengths, starts)
    for over in np.flatnonzero(tokens > case.request.token_budget)[:1].tolist():
        return f"micro-batch {numbers[over]} holds {tokens[over]} {plan.layout} tokens, over the budget"
    return ""


def unequal_window(plan: BatchPlan, case: Case) -> str:
    """A x M micro-batches in every window, and a sample."""
    for number in range(plan.windows):
        window = plan.window(number)
        if len(window) != case.request.window_size:
            return f"window {number} has {len(window)} micro-batches instead of {case.request.window_size}"
        if plan.batch_offsets[window.start] == plan.batch_offsets[window.stop]:
            return f"window {number} has no sample"
    return ""


def uncertified(plan: BatchPlan, case: Case) -> str:
    """The certificate, on plans in which nothing above is wrong."""
    if any(breach(plan, case) for breach in (not_once, over_budget, unequal_window)):
        return ""  # is another rule's
    try:
        certificate.check(plan, case.lengths, case.request)
    except PlanError as error:
        return str(error)
    return ""
