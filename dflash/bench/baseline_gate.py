"""Arms against a stored baseline: exact figures by gates, clocks as advice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from dflash.bench import results
from dflash.bench.baseline import Baseline, Request, Strategy, lengths_of, unequal
from dflash.bench.comparisons import exact_comparison
from dflash.bench.gates import Rules
from dflash.bench.metrics import METRICS, PLAN_METRICS, Metric, change
from dflash.bench.results import Comparison
from dflash.bench.verdict import TOLERANCE, Verdict, judge_exact


def differences(
    stored: Baseline, data: results.Data, request: Request, trial: dict[str, Any] | None = None
) -> tuple[list[str], list[str]]:
    """In words, what keeps plans, and what keeps the trials' own figures, from being compared with it."""
    plans = []
    if lengths_of(data) != stored.lengths.fingerprint:
        plans.append(
            f"lengths {_short(stored.lengths.fingerprint)} ({stored.lengths.samples} samples of "
            f"{stored.lengths.name}) then, {_short(lengths_of(data))} ({data.samples} samples of "
            f"{data.name}) now"
        )
    then, now = msgspec.to_builtins(stored.request), msgspec.to_builtins(request)
    plans += unequal(then, now)
    trials = list(plans)
    if stored.trial is None:
        trials.append("it was made from plans, without trials")
    elif trial is not None:
        trials += unequal(stored.trial, trial)
    return plans, trials


def compare_with(
    stored: Baseline,
    label: str,
    arms: Sequence[results.Arm],
    rules: Rules,
    *,
    data: results.Data,
    request: Request,
    trial: dict[str, Any] | None = None,
    numpy: str | None = np.__version__,
) -> list[Comparison]:
    """Every arm against its entry, for every exact metric of it, and its clocks, which are advice.

    A gate that meets no entry, or an entry of other lengths or another request, is NO_BASELINE with the
    difference named; so is a gate that binds a strategy which is in the baseline and not among the arms.
    """
    plans_differ, trials_differ = differences(stored, data, request, trial)
    note = "" if numpy == stored.numpy else f" (numpy {stored.numpy} then, {numpy} now)"
    found = []
    for arm in arms:
        entry = stored.strategies.get(arm.strategy)
        for metric in METRICS.values():
            if metric.gate_rule == "exact":
                why = plans_differ if metric.name in PLAN_METRICS else trials_differ
                found += _exact(entry, label, arm, metric, rules, why, note)
            elif entry is not None and metric.name in entry.clocks:
                found += _advice(entry.clocks[metric.name], label, arm, metric)
    measured = {arm.strategy for arm in arms}
    for name in stored.strategies.keys() - measured:
        for metric in METRICS.values():
            if metric.gate_rule == "exact" and rules.gate_of(name, metric.name):
                found.append(
                    _missing(name, label, metric, rules, f"{name} is in the {label}, and was not run")
                )
    return found


def _exact(
    entry: Strategy | None,
    label: str,
    arm: results.Arm,
    metric: Metric,
    rules: Rules,
    why: Sequence[str],
    note: str,
) -> list[Comparison]:
    gate = rules.gate_of(arm.strategy, metric.name)
    if why or entry is None:
        if gate is None:
            return []
        reason = f"another baseline is needed: {'; '.join(why)}" if why else f"not in the {label}"
        return [_missing(arm.strategy, label, metric, rules, reason)]
    if gate is None and metric.name not in arm.metrics:
        return []
    values = entry.metrics.get(metric.name), arm.metrics.get(metric.name)
    if gate is None and None in values:
        return []
    answer = judge_exact(metric, *values, gate.tolerance if gate else TOLERANCE)
    note = "" if answer.verdict is Verdict.OK else note
    return [exact_comparison(arm.strategy, label, metric, values, answer, rules, note)]


def _missing(arm: str, label: str, metric: Metric, rules: Rules, reason: str) -> Comparison:
    gate = rules.gate_of(arm, metric.name)
    return Comparison(
        strategy=arm,
        reference=label,
        metric=metric.name,
        verdict=Verdict.NO_BASELINE,
        reason=f"{metric.name}: {reason}",
        gate=gate.text if gate else None,
        tolerance=gate.tolerance if gate else None,
    )


def _advice(clock: float, label: str, arm: results.Arm, metric: Metric) -> list[Comparison]:
    now = arm.metrics.get(metric.name)
    if not clock or not now:
        return []
    return [
        Comparison(
            strategy=arm.strategy,
            reference=label,
            metric=metric.name,
            estimate=now / clock,
            reason=f"{change(metric.name, now / clock)}: advice only, since clocks of two jobs give 27 to "
            "37 % false alarms; --against REV measures both in one",
            advisory=True,
        )
    ]


def _short(fingerprint: str) -> str:
    return fingerprint[:12]
