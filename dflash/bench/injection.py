"""Losses put in on purpose, to see whether they are found: real work in a trial's process, and worse plans.

``tok_s:10%`` takes a tenth of the throughput, ``padding_efficiency:1%`` a hundredth of the plan's efficiency.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import numpy as np

from dflash.batching.composition import measure
from dflash.batching.plan import BatchPlan, IntArray, PlanRequest, Strategy
from dflash.bench.gates import parse_percent
from dflash.errors import UsageError

METRICS = ("tok_s", "padding_efficiency")


@dataclass(frozen=True)
class Injection:
    """``metric`` is to lose ``share`` of its value."""

    metric: str
    share: float


def parse(text: str) -> Injection:
    """``METRIC:PERCENT``, such as ``tok_s:10%``, as an injection; UsageError on any other text."""
    metric, _, size = text.partition(":")
    if metric not in METRICS:
        raise UsageError(f"--inject {text!r}: write METRIC:PERCENT with one of {', '.join(METRICS)}")
    share = parse_percent(size, f"--inject {text!r}")
    if not 0 < share < 1:
        raise UsageError(f"--inject {text!r}: expected more than 0% and less than 100%")
    return Injection(metric, share)


def _share(text: str | None, metric: str) -> float:
    injection = parse(text) if text else None
    return injection.share if injection and injection.metric == metric else 0.0


@contextmanager
def slowed(text: str | None) -> Iterator[None]:
    """Inside, training in this process has the throughput that ``text`` leaves of it, if it is about tok_s.

    Whichever stage is the slowest decides the throughput, so targets and drafter are slowed alike: each adds
    real work to its own until it has taken 1 / (1 - share) times as long. The methods are replaced in their
    classes, hence in all of the process, because the trainer has no place for this, and should have none.
    """
    share = _share(text, "tok_s")
    if not share:
        yield
        return
    from dflash.models.target import Target
    from dflash.training.optimizer import Optimizer
    from dflash.training.step import DrafterStep

    of_targets = ((Target, "features"), (Target, "packed_features"))
    of_drafters = ((DrafterStep, "add"), (Optimizer, "commit"))
    with ExitStack() as stack:
        for owner, name in (*of_targets, *of_drafters):
            original = getattr(owner, name)
            stack.callback(setattr, owner, name, original)
            setattr(owner, name, stretched(original, share))
        yield


def stretched(function: Callable[..., Any], share: float) -> Callable[..., Any]:
    """``function`` with work for nothing after it, on its thread, until that is ``share`` of its time."""

    @wraps(function)
    def longer(*args: Any, **kwargs: Any) -> Any:
        start = _now()
        result = function(*args, **kwargs)
        done = _now()
        end = done + (done - start) * share / (1 - share)
        matrix = np.full((160, 160), 1 / 160)  # its powers are all the same
        while _now() < end:
            # A fraction of a millisecond each: shorter ones would hold up other threads by Python's lock.
            matrix = matrix @ matrix
        return result

    return longer


def _now() -> float:
    """CPU seconds of this thread, which no other process changes; with a GPU, seconds once it is idle."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return time.thread_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def worsened(strategy: Strategy, text: str | None) -> Strategy:
    """``strategy`` with plans that lose as much padding efficiency as ``text`` says, if it is about that."""
    share = _share(text, "padding_efficiency")
    return _Worsened(strategy, share) if share else strategy


@dataclass(frozen=True)
class _Worsened:
    strategy: Strategy
    share: float

    def plan(self, lengths: IntArray, request: PlanRequest) -> BatchPlan:
        return add_padding(self.strategy.plan(lengths, request), lengths, request, self.share)


def add_padding(plan: BatchPlan, lengths: IntArray, request: PlanRequest, share: float) -> BatchPlan:
    """A plan of the same micro-batch sizes with 1 - ``share`` of the padding efficiency, or a hair less.

    One micro-batch after the other gives its shortest sample for a longer one than it has, such that it stays
    within the token budget and the other micro-batch keeps its longest.

    Raises UsageError where the budget does not leave room for so much padding, and for a packed plan.
    """
    if plan.layout == "packed":
        raise UsageError("padding_efficiency cannot be injected into a packed plan: it has no padding")
    composition = measure(plan, lengths)
    padded = int(composition.padded_tokens.sum())
    missing = int(np.ceil(padded / (1 - share))) - padded
    samples = plan.samples.copy()
    planned = lengths[samples]
    batch_of = np.repeat(np.arange(plan.batches), composition.rows)
    starts = plan.batch_offsets[:-1]
    fixed = np.zeros(len(samples), np.bool_)  # the longest of each micro-batch, and what has been moved
    for start, end in zip(starts, plan.batch_offsets[1:], strict=True):
        if end > start:
            fixed[start + int(planned[start:end].argmax())] = True
    by_length = np.argsort(planned, kind="stable")
    ascending = planned[by_length]
    for batch in range(plan.batches):
        rows, longest = int(composition.rows[batch]), int(composition.longest[batch])
        if missing <= 0 or not rows:
            continue
        first, last = np.searchsorted(ascending, [longest, request.token_budget // rows], side="right")
        usable = by_length[first:last]
        usable = usable[~fixed[usable] & (batch_of[usable] != batch)]
        if len(usable):
            given = int(starts[batch] + planned[starts[batch] : starts[batch] + rows].argmin())
            enough = int(np.searchsorted(planned[usable], longest + missing / rows))
            taken = int(usable[min(enough, len(usable) - 1)])
            samples[given], samples[taken] = samples[taken], samples[given]
            fixed[[given, taken]] = True
            missing -= rows * (int(planned[taken]) - longest)
    if missing > 0:
        reached = 1 - padded / (int(np.ceil(padded / (1 - share))) - missing)
        raise UsageError(
            f"padding_efficiency cannot lose {100 * share:g} % in this plan: the budget leaves room for "
            f"{100 * reached:.2g} %"
        )
    return replace(plan, samples=samples)
