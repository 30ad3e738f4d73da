"""Verdicts: what pairs of trials say about a metric, and what the whole run says by its exit code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from dflash.bench import metrics
from dflash.bench.metrics import Metric
from dflash.bench.statistics import (
    LEVEL,
    FloatArray,
    Interval,
    SignedRanks,
    as_ratio,
    detectable,
    holm,
    least_pairs,
    log_ratios,
)
from dflash.errors import ExitCode

FLOOR = 0.02
TOLERANCE = 0.05
EXACT_TOLERANCE = 0.001
IMPLAUSIBLE_GAIN = 0.5


class Verdict(StrEnum):
    OK = "OK"
    IMPROVED = "IMPROVED"
    REGRESSED = "REGRESSED"
    INCONCLUSIVE = "INCONCLUSIVE"
    NO_BASELINE = "NO_BASELINE"
    ERROR = "ERROR"


@dataclass(frozen=True, eq=False)
class Question:
    """Whether one metric of a strategy got worse: pair k is (reference[k], candidate[k]), finite and above 0.

    ``name`` is what a person calls it. ``tolerance`` is the loss that must not be missed, ``floor`` the loss
    below which nobody cares; both are shares of the reference's value. ``gated`` questions decide the exit
    code. ``expected`` is the ratio that exact facts explain, such as two strategies' padding efficiencies.
    """

    name: str
    strategy: str
    metric: Metric
    reference: FloatArray
    candidate: FloatArray
    tolerance: float
    floor: float
    gated: bool
    expected: float = 1.0


@dataclass(frozen=True)
class Judgement:
    """A verdict, or None where there can be none, and the reason in words.

    ``ratio`` is candidate / reference of the metric itself, None where there is none. ``minimum_detectable``
    is the least loss that these pairs show with probability 90 %, as a share of the reference's value.
    ``suspicious`` is a gain too large to be one: some of the work was probably not done.
    """

    verdict: Verdict | None
    reason: str
    ratio: Interval | None = None
    minimum_detectable: float | None = None
    suspicious: bool = False


def judge(questions: Sequence[Question], *, level: float = LEVEL, last_look: bool) -> list[Judgement]:
    """Answer all questions of one look at a run, in their order.

    REGRESSED comes first: the bound at ``level`` says worse, for gated questions by Holm's rule over all of
    them, and the estimate is off by the floor or more. Then IMPROVED, if the bound says better and the
    estimate by the floor or more; OK, if the bound is better than the tolerance; INCONCLUSIVE otherwise.
    OK needs no rule for families: the run passes only if each of its gates does.

    Raises ValueError on values that are not finite and above zero, or not pairs.
    """
    evidence = [_weigh(question, level) for question in questions]
    family = [e for e in evidence if e.question.gated and e.bounded]
    for e, worse in zip(family, holm([e.p_worse for e in family], 1 - level), strict=True):
        e.worse = worse
    return [_judgement(e, level, last_look) for e in evidence]


@dataclass(eq=False)
class _Evidence:
    """What the pairs say about a question. ``worse`` is: so surely that it may be called so."""

    question: Question
    ratio: Interval | None
    p_worse: float = 1.0
    worse: bool = False
    detectable: float | None = None

    @property
    def bounded(self) -> bool:
        return (
            self.ratio is not None and self.ratio.low is not None and self.question.metric.direction != "none"
        )


def _weigh(question: Question, level: float) -> _Evidence:
    if not len(question.reference) and not len(question.candidate):
        return _Evidence(question, None)
    ranks = SignedRanks(log_ratios(question.reference, question.candidate))
    p_worse = ranks.p_below() if question.metric.direction == "higher" else ranks.p_above()
    least = minimum_detectable(question.metric, ranks, level, question.floor)
    return _Evidence(question, as_ratio(ranks.interval(level)), p_worse, p_worse <= 1 - level, least)


def _judgement(evidence: _Evidence, level: float, last_look: bool) -> Judgement:
    question, ratio, name = evidence.question, evidence.ratio, evidence.question.metric.name
    if ratio is None:
        return Judgement(Verdict.ERROR, f"{name}: no pair in which both trials worked")
    pairs = f"{ratio.n} pair{'s' if ratio.n != 1 else ''}"
    measured = f"{metrics.change(name, ratio.estimate, ratio.low, ratio.high)}, {pairs}"
    if ratio.low is None or ratio.high is None:
        needed = f"a {metrics.percent(level)} interval needs {least_pairs(level)}"
        return Judgement(None, f"{measured}: {needed}", ratio)
    if not evidence.bounded:
        return Judgement(None, f"{measured}: neither side of {name} is better", ratio)
    # Gains are signed changes for the better: 0.03 is 3 % more tokens per second, or 3 % less time.
    side = 1 if question.metric.direction == "higher" else -1
    gain = side * (ratio.estimate - 1)
    surely = min(side * (ratio.low - 1), side * (ratio.high - 1))
    suspicious = False
    if evidence.worse and gain <= -question.floor:
        verdict, why = Verdict.REGRESSED, "worse"
    elif surely > 0 and gain >= question.floor:
        verdict, why = Verdict.IMPROVED, "better"
        suspicious = _implausible((ratio.estimate / question.expected) ** side)
        why += f", and {_TOO_GOOD}" if suspicious else ""
    elif surely > -question.tolerance:
        verdict, why = Verdict.OK, f"{metrics.percent(question.tolerance)} worse is excluded"
    else:
        verdict, why = Verdict.INCONCLUSIVE, f"{metrics.percent(question.tolerance)} worse is not excluded"
        if last_look and evidence.detectable is not None and evidence.detectable > question.tolerance:
            why += f"; so many pairs show {metrics.percent(evidence.detectable, 1)} here, and no less"
    if evidence.p_worse <= 1 - level and gain <= -question.floor and not evidence.worse:
        why += "; by itself it would count as worse, among so many gates it does not"
    return Judgement(verdict, f"{measured}: {why}", ratio, evidence.detectable, suspicious)


def minimum_detectable(
    metric: Metric, ranks: SignedRanks, level: float, floor: float, pairs: int | None = None
) -> float | None:
    """The least loss that ``pairs`` pairs show with probability 90 %, as a share of the reference's value.

    ``ranks`` are of the log ratios of the pairs at hand; as many are meant if ``pairs`` is None. None below
    five of them. See statistics.detectable.
    """
    error = ranks.standard_error()
    if error is None:
        return None
    side = -1 if metric.direction == "higher" else 1
    pairs = pairs or ranks.n
    error *= math.sqrt(ranks.n / pairs)
    shift = detectable(error, pairs, level, abs(math.log1p(side * floor)))
    return abs(math.expm1(side * shift))


def judge_exact(
    metric: Metric,
    reference: float | None,
    candidate: float | None,
    tolerance: float,
    *,
    same_strategy: bool = True,
) -> Judgement:
    """Compare two values without noise: one comparison decides, and a loss of ``tolerance`` is REGRESSED.

    A metric without a better side must not change either way. Between strategies no gain is too large.
    NO_BASELINE without a ``reference``, ERROR without a ``candidate`` or for a value that is not finite.
    """
    name = metric.name
    if reference is None:
        return Judgement(Verdict.NO_BASELINE, f"{name}: the reference has no value")
    if candidate is None:
        return Judgement(Verdict.ERROR, f"{name}: was not measured")
    if not (math.isfinite(reference) and math.isfinite(candidate)):
        return Judgement(Verdict.ERROR, f"{name}: {candidate} against {reference} is no comparison")
    ratio = candidate / reference if reference else None
    interval = None if ratio is None else Interval(ratio, ratio, ratio, 1)
    measured = f"{name} {_six_digits(reference)} \u2192 {_six_digits(candidate)}"
    difference = candidate - reference
    if not difference:
        return Judgement(Verdict.OK, f"{measured}: equal", interval)
    share = difference / abs(reference) if reference else math.copysign(math.inf, difference)
    if reference:
        measured += f" ({metrics.number(100 * share)} %)"
    gain = {"higher": share, "lower": -share, "none": -abs(share)}[metric.direction]
    # A hair of rounding must not decide whether a loss of exactly the tolerance is one.
    limit = tolerance * (1 - 1e-9)
    if abs(gain) < limit:
        return Judgement(Verdict.OK, f"{measured}: within {metrics.percent(tolerance)}", interval)
    if gain < 0:
        why = "changed" if metric.direction == "none" else "worse"
        return Judgement(Verdict.REGRESSED, f"{measured}: {why}", interval)
    better, worse = (candidate, reference) if metric.direction == "higher" else (reference, candidate)
    suspicious = same_strategy and (not worse or _implausible(better / worse))
    why = f"better, and {_TOO_GOOD}" if suspicious else "better"
    return Judgement(Verdict.IMPROVED, f"{measured}: {why}", interval, suspicious=suspicious)


def _six_digits(value: float) -> str:
    magnitude = math.floor(math.log10(abs(value))) if value else 5
    return metrics.number(value, max(0, 5 - magnitude))


def _implausible(times_better: float) -> bool:
    return times_better > 1 + IMPLAUSIBLE_GAIN


_TOO_GOOD = f"by more than {metrics.percent(IMPLAUSIBLE_GAIN)}: was all of the work done?"


@dataclass(frozen=True)
class Outcome:
    """What happened in a run, as far as its verdict and exit code depend on it, and what they are to mean.

    ``measured`` counts trials that worked, ``failed`` arms or trials that did not. ``gates`` holds the
    verdicts that were asked to decide, None for one that could not be given; a comparison that no gate names
    is information and never counts. ``suspicious`` is a gate's gain too large to be one. ``misused`` is a
    usage error that shows only in the results.

    ``strict`` fails what is inconclusive or suspicious, ``on_inconclusive`` the first alone. A missing
    baseline may ``pass``, or be saved now; a run without a trial never passes.
    """

    measured: int
    failed: int
    gates: tuple[Verdict | None, ...] = ()
    suspicious: bool = False
    interrupted: bool = False
    misused: bool = False
    strict: bool = False
    on_inconclusive: Literal["pass", "fail"] = "pass"
    on_missing_baseline: Literal["fail", "pass", "save"] = "fail"


def run_verdict(outcome: Outcome) -> Verdict:
    """The verdict of the run: ERROR if it was interrupted, misused or had a failure, then by its gates."""
    return _VERDICTS.get(_first(_codes(outcome)), _best_gate(outcome))


def exit_code(outcome: Outcome) -> ExitCode:
    """The exit code of the run, by the precedence 130, 2, 3, 1, 5, 4."""
    return _first(_codes(outcome) - _forgiven(outcome))


def _forgiven(outcome: Outcome) -> set[ExitCode]:
    """Codes that apply and yet do not count, by what the run was asked for."""
    forgiven = set()
    if outcome.on_missing_baseline != "fail" and outcome.measured:
        forgiven.add(ExitCode.NOTHING_MEASURED)
    fails = outcome.strict or (outcome.on_inconclusive == "fail" and _undecided(outcome))
    if not fails:
        forgiven.add(ExitCode.INCONCLUSIVE)
    return forgiven


def _undecided(outcome: Outcome) -> bool:
    return Verdict.INCONCLUSIVE in outcome.gates or None in outcome.gates


_PRECEDENCE = (
    ExitCode.INTERRUPTED,
    ExitCode.USAGE,
    ExitCode.TRIAL_FAILED,
    ExitCode.REGRESSION,
    ExitCode.NOTHING_MEASURED,
    ExitCode.INCONCLUSIVE,
)

_VERDICTS = {
    ExitCode.INTERRUPTED: Verdict.ERROR,
    ExitCode.USAGE: Verdict.ERROR,
    ExitCode.TRIAL_FAILED: Verdict.ERROR,
    ExitCode.REGRESSION: Verdict.REGRESSED,
    ExitCode.NOTHING_MEASURED: Verdict.NO_BASELINE,
    ExitCode.INCONCLUSIVE: Verdict.INCONCLUSIVE,
}


def _codes(outcome: Outcome) -> set[ExitCode]:
    """Every exit code that applies, OK excepted."""
    gates = outcome.gates
    applies = {
        ExitCode.INTERRUPTED: outcome.interrupted,
        ExitCode.USAGE: outcome.misused,
        ExitCode.TRIAL_FAILED: outcome.failed > 0 or Verdict.ERROR in gates,
        ExitCode.REGRESSION: Verdict.REGRESSED in gates,
        ExitCode.NOTHING_MEASURED: outcome.measured == 0 or Verdict.NO_BASELINE in gates,
        ExitCode.INCONCLUSIVE: outcome.suspicious or _undecided(outcome),
    }
    return {code for code, applied in applies.items() if applied}


def _first(codes: set[ExitCode]) -> ExitCode:
    return next((code for code in _PRECEDENCE if code in codes), ExitCode.OK)


def _best_gate(outcome: Outcome) -> Verdict:
    return Verdict.IMPROVED if Verdict.IMPROVED in outcome.gates else Verdict.OK
