"""Gates on plans: exact figures against a stored baseline, without a trial and without a clock."""

from __future__ import annotations

import msgspec

from dflash.bench import baseline, baseline_gate, comparisons, verdict
from dflash.bench.baseline_source import request_of_plans
from dflash.bench.gates import Rules
from dflash.bench.metrics import PLAN_METRICS
from dflash.bench.plan_run import PlanReport
from dflash.errors import UsageError


def gated(report: PlanReport, name: str | None, rules: Rules) -> PlanReport:
    """``report`` with the comparisons and the exit code that ``rules`` give it against the baseline ``name``.

    Raises UsageError for a broken baseline and for a gate on what only trials measure, NoBaselineError where
    there is no baseline and that must fail.
    """
    for gate in rules.gates:
        if gate.metric.name not in PLAN_METRICS:
            raise UsageError(f"--fail-on {gate.text}: only trials measure {gate.metric.name}, plans do not")
    stored, use = baseline.open_baseline(name, rules, None)
    found = []
    if stored is not None and use is not None:
        request = request_of_plans(report)
        numpy = report.machine.versions.get("numpy")
        found = baseline_gate.compare_with(
            stored, use.name, report.arms, rules, data=report.data, request=request, numpy=numpy
        )
        plans, _ = baseline_gate.differences(stored, report.data, request)
        use = msgspec.structs.replace(use, differences=plans)
    why = "plans are compared with a stored baseline, and none was named" if name is None else f"no {name}"
    names = [arm.strategy for arm in report.arms]
    found += comparisons.unanswered(names, found, rules, dict.fromkeys(names, why))
    planned = sum(arm.error is None for arm in report.arms)
    outcome = rules.outcome(
        [one.verdict for one in found if one.gate is not None],
        measured=planned,
        suspicious=any(one.suspicious for one in found if one.gate is not None),
        misused=planned < len(report.arms),
    )
    return msgspec.structs.replace(
        report,
        comparisons=found,
        baseline=use,
        verdict=verdict.run_verdict(outcome),
        exit_code=verdict.exit_code(outcome),
    )
