"""Plans of several strategies for the same lengths, certified and measured: no model, no training."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dflash.batching import lengths as distributions
from dflash.batching import prediction
from dflash.batching.composition import measure_composition
from dflash.batching.plan import BatchPlan, IntArray, PlanRequest, Reason
from dflash.batching.planning import Overlong, make_plan
from dflash.bench import machine, results, revision
from dflash.bench.document import Document
from dflash.bench.lengths_file import read_lengths
from dflash.bench.metrics import PLAN_METRICS
from dflash.bench.verdict import Verdict
from dflash.errors import ExitCode, PlanError, UsageError
from dflash.plugin_manager import Arm


@dataclass(frozen=True, eq=False)
class Samples:
    """The lengths to plan, int64[n], the store rows that they belong to, and what results call them."""

    lengths: IntArray
    ids: IntArray
    data: results.Data


class PlanSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for."""

    token_budget: int
    accumulation: int
    drafters: int
    seed: int
    epoch: int
    tail: str
    overlong: str


class PlanReport(Document, frozen=True, kw_only=True):
    """All plans, as their JSON shows them: a run's JSON without what only trials can tell."""

    schema_version: int = results.SCHEMA_VERSION
    exit_code: ExitCode
    arms: list[results.Arm]
    settings: PlanSettings
    data: results.Data
    machine: machine.Machine
    verdict: Verdict = Verdict.OK
    comparisons: list[results.Comparison] = msgspec.field(default_factory=list)
    baseline: results.BaselineUse | None = None
    revision: results.Revision | None = None
    command_line: list[str] = msgspec.field(default_factory=list)


def samples_from_lengths(text: str) -> Samples:
    """The lengths of a file, or those that `lognormal:...` draws; UsageError if they are none."""
    drawn = text.partition(":")[0].strip() == "lognormal"
    lengths = distributions.parse_lengths(text) if drawn else read_lengths(Path(text))
    return _samples(text, results.lengths_fingerprint(lengths), lengths, np.arange(len(lengths)))


def samples_from_store(store: str) -> Samples:
    """The lengths of a token store's training samples; UsageError if there are none."""
    from dflash.config import DataSettings
    from dflash.data.sources import open_store

    found = open_store(DataSettings(store=store))
    rows = found.rows(held_out=False)
    return _samples(store, found.fingerprint, found.lengths[rows], rows)


def _samples(name: str, fingerprint: str, lengths: IntArray, ids: IntArray) -> Samples:
    if not len(lengths):
        raise UsageError(f"{name}: there are no samples to plan")
    data = results.Data(
        name=name,
        fingerprint=fingerprint,
        samples=len(lengths),
        tokens=int(lengths.sum(dtype=np.int64)),
        lengths=results.lengths_fingerprint(lengths),
    )
    return Samples(lengths, ids, data)


def run_plans(
    arms: Sequence[Arm],
    samples: Samples,
    request: PlanRequest,
    overlong: Overlong,
    started: Callable[[Arm], None],
    ended: Callable[[results.Arm], None],
) -> PlanReport:
    """Plan with every arm; ``started`` and ``ended`` are told of each.

    A strategy that fails is an arm with an error, and the others go on. Raises PlanError if all of several
    fail for one reason, which then lies in the lengths or the request.
    """
    measured = []
    for arm in arms:
        started(arm)
        measured.append(_measured(arm, samples, request, overlong))
        ended(measured[-1])
    errors = [arm.error for arm in measured if arm.error is not None]
    if len(measured) > 1 and len(errors) == len(measured) and len(set(errors)) == 1:
        raise PlanError(errors[0])
    return PlanReport(
        exit_code=ExitCode.USAGE if errors else ExitCode.OK,
        arms=measured,
        settings=PlanSettings(
            token_budget=request.token_budget,
            accumulation=request.accumulation,
            drafters=request.drafters,
            seed=request.seed,
            epoch=request.epoch,
            tail=request.tail,
            overlong=overlong,
        ),
        data=samples.data,
        machine=machine.describe(),
        verdict=Verdict.ERROR if errors else Verdict.OK,
        revision=revision.current(),
        command_line=sys.argv,
    )


def _measured(arm: Arm, samples: Samples, request: PlanRequest, overlong: Overlong) -> results.Arm:
    plan: dict[str, Any] = {}
    metrics: dict[str, float | None] = dict.fromkeys(PLAN_METRICS)
    error = None
    try:
        made, lengths, seconds = _timed(arm, samples, request, overlong)
        other, _, other_seconds = _timed(arm, samples, replace(request, epoch=request.epoch + 1), overlong)
        ends = _bucket_ends(arm, lengths, request)
        found = measure_composition(made, lengths, request, other_epoch=other, bucket_ends=ends)
        plan = _described(made)
        metrics |= {name: None if math.isnan(value) else value for name, value in found.metrics.items()}
        # Only the first plan of a process may have to load or compile something.
        metrics["plan_seconds"] = min(seconds, other_seconds)
    except PlanError as failure:
        error = str(failure)
    return results.Arm(
        strategy=arm.name,
        options=arm.options,
        plugin=results.Plugin.of(arm.record),
        plan=plan,
        metrics=metrics,
        error=error,
    )


def _timed(
    arm: Arm, samples: Samples, request: PlanRequest, overlong: Overlong
) -> tuple[BatchPlan, IntArray, float]:
    start = time.perf_counter()
    plan, lengths = make_plan(
        arm.strategy, samples.lengths, request, ids=samples.ids, overlong=overlong, name=arm.name
    )
    return plan, lengths, time.perf_counter() - start


def _bucket_ends(arm: Arm, lengths: IntArray, request: PlanRequest) -> IntArray | None:
    try:
        return prediction.bucket_ends(arm.strategy, lengths, request)
    except Exception as error:  # whatever foreign code raises
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise PlanError(f"strategy {arm.name!r} failed to name its buckets: {what}") from error


def _described(plan: BatchPlan) -> dict[str, Any]:
    """The plan in short; only a plan that passed its certificate comes here."""
    reasons = plan.ledger["reason"]
    return {
        "digest": plan.digest(),
        "certified": True,
        "layout": plan.layout,
        "windows": plan.windows,
        "ledger": {
            reason.name.lower(): {
                "samples": int((reasons == reason).sum()),
                "tokens": int(plan.ledger["tokens"][reasons == reason].sum()),
            }
            for reason in Reason
        },
    }
