"""Verdicts: what an interval says about one metric, and what the whole run says by its exit code."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dflash.bench import metrics
from dflash.bench.metrics import Metric
from dflash.bench.statistics import LEVEL, least_pairs
from dflash.errors import ExitCode

FLOOR = 0.02
TOLERANCE = 0.05


class Verdict(StrEnum):
    OK = "OK"
    IMPROVED = "IMPROVED"
    REGRESSED = "REGRESSED"
    INCONCLUSIVE = "INCONCLUSIVE"
    NO_BASELINE = "NO_BASELINE"
    ERROR = "ERROR"


@dataclass(frozen=True)
class Judgement:
    """A verdict, or None where there can be none, and the reason in words."""

    verdict: Verdict | None
    reason: str


def judge(
    metric: Metric,
    estimate: float,
    low: float | None,
    high: float | None,
    pairs: int,
    floor: float = FLOOR,
    tolerance: float = TOLERANCE,
    level: float = LEVEL,
) -> Judgement:
    """What the ratio candidate / reference says; ``low`` and ``high`` are its one-sided bounds at ``level``.

    Worse is tested first, then better: the bound excludes "no change", and the estimate is off by ``floor``
    (a share of the reference's value) or more. Then OK if the bound excludes a loss of ``tolerance``.
    """
    measured = f"{metrics.change(metric.name, estimate, low, high)}, {pairs} pair{'s' if pairs != 1 else ''}"
    if low is None or high is None:
        return Judgement(None, f"{measured}: a {metrics.percent(level)} interval needs {least_pairs(level)}")
    if metric.direction == "none":
        return Judgement(None, f"{measured}: neither side of {metric.name} is better")
    # Gains are the signed changes for the better: 0.03 is 3 % more tokens per second, or 3 % less time.
    side = 1 if metric.direction == "higher" else -1
    gain = side * (estimate - 1)
    surely, at_best = sorted((side * (low - 1), side * (high - 1)))
    limit = f"{metrics.percent(tolerance)} worse"
    if at_best < 0 and gain <= -floor:
        return Judgement(Verdict.REGRESSED, f"{measured}: worse")
    if surely > 0 and gain >= floor:
        return Judgement(Verdict.IMPROVED, f"{measured}: better")
    if surely > -tolerance:
        return Judgement(Verdict.OK, f"{measured}: {limit} is excluded")
    return Judgement(Verdict.INCONCLUSIVE, f"{measured}: {limit} is not excluded")


@dataclass(frozen=True)
class Outcome:
    """What happened in a run, as far as its verdict and exit code depend on it.

    ``measured`` counts trials that worked, ``failed`` arms or trials that did not. ``gates`` holds the
    verdicts that were asked to decide, None for one that could not be given; a comparison that no gate names
    is information and never counts. ``misused`` is a usage error that shows only in the results.
    """

    measured: int
    failed: int
    gates: tuple[Verdict | None, ...] = ()
    interrupted: bool = False
    misused: bool = False


def run_verdict(outcome: Outcome) -> Verdict:
    """The verdict of the run: ERROR if it was interrupted, misused or had a failure, then by its gates."""
    return _VERDICTS.get(_first(_codes(outcome)), _best_gate(outcome))


def exit_code(outcome: Outcome, strict: bool = False) -> ExitCode:
    """The exit code of the run, by the precedence 130, 2, 3, 1, 5, 4; inconclusive is 0 unless ``strict``."""
    codes = _codes(outcome)
    return _first(codes if strict else codes - {ExitCode.INCONCLUSIVE})


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
        ExitCode.INCONCLUSIVE: Verdict.INCONCLUSIVE in gates or None in gates,
    }
    return {code for code, applied in applies.items() if applied}


def _first(codes: set[ExitCode]) -> ExitCode:
    return next((code for code in _PRECEDENCE if code in codes), ExitCode.OK)


def _best_gate(outcome: Outcome) -> Verdict:
    return Verdict.IMPROVED if Verdict.IMPROVED in outcome.gates else Verdict.OK
