"""Gates on learning: what the seeds of a learning run say about one arm, metric by metric."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dflash.bench.gates import Gate, Rules
from dflash.bench.learning.results import LearningArm, LearningReport
from dflash.bench.learning.stability import compare_spikes
from dflash.bench.metrics import LEARNING_METRICS, number, percent
from dflash.bench.results import Comparison
from dflash.bench.statistics import FloatArray, Interval
from dflash.bench.verdict import Judgement, Question, Verdict, judge

AGAINST_RANDOM = ("design_effect", "loss_design_effect")
"""Metrics whose partner is a random deal of the same samples, and not another arm."""

_RANDOM = "random windows"


def compare_learning(report: LearningReport, rules: Rules) -> list[Comparison]:
    """Every gate on a learning metric, for every arm that it binds.

    A gate's percentage is the margin on both sides: REGRESSED if the bound says worse and the estimate is off
    by the margin or more, OK if the bound excludes the margin, INCONCLUSIVE otherwise. Losses, times and
    diversities are paired by seed and judged together, as the clocks of a run are; design effects have the
    bounds of their windows. Arms without partner are left to ``comparisons.unanswered``.
    """
    asked = list(_asked(report, rules))
    questions = {(arm.strategy, gate.text): _question(report, arm, gate) for arm, gate in asked}
    known = [one for one in questions.values() if one is not None]
    answers = iter(judge(known, level=report.level, last_look=True))
    return [
        _comparison(
            report,
            arm,
            gate,
            next(answers) if questions[arm.strategy, gate.text] else _answer(report, arm, gate),
        )
        for arm, gate in asked
    ]


def failures(report: LearningReport | None) -> int:
    """How many arms have a learning trial that failed."""
    return sum(arm.error is not None for arm in report.arms) if report is not None else 0


def _asked(report: LearningReport, rules: Rules) -> Iterator[tuple[LearningArm, Gate]]:
    for arm in report.arms:
        for name in LEARNING_METRICS:
            gate = rules.gate_of(arm.strategy, name)
            alone = arm.strategy == report.reference and name not in AGAINST_RANDOM
            if gate is not None and gate.metric.gate_rule == "learning" and not alone:
                yield arm, gate


def _question(report: LearningReport, arm: LearningArm, gate: Gate) -> Question | None:
    """What pairs by seed can answer; None for what they cannot, or where there are none."""
    name, partner = gate.metric.name, report.arm(report.reference)
    if name not in ("final_loss", "time_to_loss", "gradient_diversity") or arm.error or partner.error:
        return None
    if name != "gradient_diversity" and name not in arm.against_reference:
        return None  # so few seeds, or losses that must not be compared
    before, after = (_by_seed(one, name) for one in (partner, arm))
    if not len(before) or len(before) != len(after):
        return None
    return Question(
        name=f"{arm.strategy}.{name}",
        strategy=arm.strategy,
        metric=gate.metric,
        reference=before,
        candidate=after,
        tolerance=gate.tolerance,
        floor=gate.tolerance,
        gated=True,
    )


def _by_seed(arm: LearningArm, name: str) -> FloatArray:
    """A run that never got to the loss counts as if it had with its last token, which is the least."""
    values = arm.by_seed.get(name, [])
    if name == "time_to_loss":
        values = [max(1.0, arm.real_tokens if value is None else value) for value in values]
    return np.array([value for value in values if value is not None], dtype=np.float64)


def _answer(report: LearningReport, arm: LearningArm, gate: Gate) -> Judgement:
    name, partner = gate.metric.name, report.arm(report.reference)
    if arm.error is not None:
        return Judgement(Verdict.ERROR, f"{name}: {arm.error}")
    if partner.error is not None:
        return Judgement(Verdict.ERROR, f"{name}: the reference failed: {partner.error}")
    value = arm.metrics.get(name)
    if name in AGAINST_RANDOM and value is not None:
        low, high = arm.intervals.get(name, (None, None))
        words = f"{name} {_bounds(value, low, high)}, {arm.frozen_windows} windows"
        answer = _by_margin(words, gate.tolerance, value - 1, low and low - 1, high and high - 1)
        return replace(answer, ratio=Interval(value, low, high, arm.frozen_windows))
    if name == "loss_spikes" and name in arm.by_seed:
        counts = [[int(n or 0) for n in one.by_seed[name]] for one in (partner, arm)]
        spikes = compare_spikes(*counts)
        words = f"{name} {spikes.reference} \u2192 {spikes.candidate}, p = {number(spikes.p)}"
        return Judgement(Verdict.REGRESSED if spikes.worse else Verdict.OK, words)
    drift = arm.against_reference.get(name)
    loss = partner.metrics.get("final_loss")
    if name == "forgetting" and drift is not None and loss:
        # A drift may be zero or of either sign, so it is measured by the loss in which it happens.
        shares = [None if one is None else one / loss for one in (drift.value, drift.low, drift.high)]
        words = f"{name} {_bounds(drift.value, drift.low, drift.high, 4)} nats/token more"
        return _by_margin(words, gate.tolerance, drift.value / loss, shares[1], shares[2])
    if name == "final_loss" and arm.by_seed.get(name):
        return Judgement(Verdict.INCONCLUSIVE, f"{name}: {arm.line}")
    seeds = len(report.seeds)
    return Judgement(None, f"{name}: {seeds} seed{'s' if seeds != 1 else ''} cannot say; use more --seeds")


def _by_margin(words: str, margin: float, worse: float, low: float | None, high: float | None) -> Judgement:
    if low is None or high is None:
        return Judgement(None, f"{words}: no interval")
    if low > 0 and worse >= margin:
        return Judgement(Verdict.REGRESSED, f"{words}: worse")
    if high < margin:
        better = high < 0 and worse <= -margin
        why = "better" if better else f"{percent(margin)} worse is excluded"
        return Judgement(Verdict.IMPROVED if better else Verdict.OK, f"{words}: {why}")
    return Judgement(Verdict.INCONCLUSIVE, f"{words}: {percent(margin)} worse is not excluded")


def _bounds(value: float, low: float | None, high: float | None, digits: int = 2) -> str:
    text = number(value, digits)
    return text if low is None or high is None else f"{text} [{number(low, digits)}, {number(high, digits)}]"


def _comparison(report: LearningReport, arm: LearningArm, gate: Gate, answer: Judgement) -> Comparison:
    name, ratio = gate.metric.name, answer.ratio
    return Comparison(
        strategy=arm.strategy,
        reference=_RANDOM if name in AGAINST_RANDOM else report.reference,
        metric=name,
        estimate=ratio.estimate if ratio else None,
        low=ratio.low if ratio else None,
        high=ratio.high if ratio else None,
        pairs=len(report.seeds),
        verdict=answer.verdict,
        reason=answer.reason,
        gate=gate.text,
        tolerance=gate.tolerance,
        floor=gate.tolerance,
        minimum_detectable=answer.minimum_detectable,
    )
