"""A baseline from the JSON of a run or of plans."""

from __future__ import annotations

import msgspec

from dflash.bench import baseline
from dflash.bench.baseline import Baseline, Request
from dflash.bench.plan_run import PlanReport
from dflash.bench.results import Run
from dflash.errors import UsageError


def of_document(content: bytes, where: str) -> Baseline:
    """The baseline that a document makes, which --json of run or plan wrote; UsageError if none did."""
    try:
        keys = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        if "run_id" in keys:
            return baseline.of_run(msgspec.json.decode(content, type=Run))
        return of_plans(msgspec.json.decode(content, type=PlanReport))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(f"{where}: neither a run nor plans of dflash-bench ({error})") from None


def of_plans(report: PlanReport) -> Baseline:
    """The baseline that plans make. Raises as baseline.make does."""
    return baseline.make(
        report.data,
        request_of_plans(report),
        report.arms,
        numpy=report.machine.versions.get("numpy"),
        revision=report.revision.commit if report.revision else None,
    )


def request_of_plans(report: PlanReport) -> Request:
    """What the plans were asked for."""
    return msgspec.convert(msgspec.to_builtins(report.settings), Request)
