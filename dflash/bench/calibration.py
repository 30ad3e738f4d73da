"""How often the verdicts are wrong: whole runs repeated, of one strategy against itself.

Without a difference, every REGRESSED is a false alarm; with a loss put in, every other verdict is a miss. The
runs are of real trials, or of times drawn from a model of their noise; the verdicts are the same code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from dflash.bench import injection, noise, sequential
from dflash.bench.document import Document
from dflash.bench.gates import Gate, Rules
from dflash.bench.loop import Progress
from dflash.bench.results import Comparison
from dflash.bench.run import RunRequest, run_benchmark
from dflash.bench.statistics import binomial_bounds
from dflash.bench.verdict import Judgement, Outcome, Question, Verdict, exit_code, judge
from dflash.errors import ExitCode

SCHEMA_VERSION = 1
LEVEL = 0.95
TWIN = "@2"


class Repeat(msgspec.Struct, frozen=True, kw_only=True):
    """What one run decided; the ratio is candidate / reference of the gate's metric."""

    verdict: Verdict | None
    pairs: int
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """How often REGRESSED came out of ``repeats`` runs, with exact one-sided bounds at 95 %.

    ``source`` is ``trials``, or the name of the noise model. ``verdicts`` counts all of them, ``pairs`` is
    the mean number that a run took.
    """

    source: str
    repeats: int
    regressed: int
    at_least: float
    at_most: float
    verdicts: dict[str, int]
    pairs: float | None
    runs: list[Repeat] = []
    """of real trials"""


class Calibration(Document, frozen=True, kw_only=True):
    """The result of ``aa`` or ``power``; the last rate is the one that counts."""

    schema_version: int = SCHEMA_VERSION
    strategy: str | None
    inject: str | None
    gate: str
    floor: float
    rates: list[Rate]
    failures: list[str]
    """why runs have no verdict"""
    exit_code: ExitCode

    @property
    def summary(self) -> str:
        """The line that scripts may read."""
        rate = self.rates[-1]
        count = f"{rate.regressed}/{rate.repeats}"
        if self.inject is None:
            return f"false alarms {count} (at most {100 * rate.at_most:.1f}% at 95%)"
        return f"caught {count} (at least {100 * rate.at_least:.1f}% at 95%)"


def calibrate(
    request: RunRequest,
    gate: Gate,
    repeats: int,
    inject: str | None,
    progress: Progress,
    finished: Callable[[Repeat], None],
) -> Calibration:
    """Repeat ``request`` with its one arm on both sides, and ``inject`` in the candidate.

    A run with a failed trial gives no verdict and is counted apart. Ctrl-C ends the run at hand; those that
    were finished count. ``finished`` is told of each.

    Raises as run_benchmark does.
    """
    (arm,) = request.arms
    twin = replace(arm, name=f"{arm.name}{TWIN}")
    # The held-out loss decides nothing here, and takes a second of each trial.
    data = msgspec.structs.replace(request.config.data, held_out_samples=1)
    paired = replace(
        request,
        arms=[arm, twin],
        config=msgspec.structs.replace(request.config, data=data),
        inject={twin.name: inject} if inject else {},
        rules=replace(request.rules, gates=(gate,)),
        rounds=request.rounds if gate.metric.gate_rule == "paired" else 1,
        directory=None,
    )
    runs: list[Repeat] = []
    failures: list[str] = []
    interrupted = False
    try:
        for _ in range(repeats):
            run = run_benchmark(paired, progress).run
            interrupted = run.exit_code == ExitCode.INTERRUPTED
            if interrupted:
                break
            errors = [side.error for side in run.arms if side.error is not None]
            if errors:
                failures.append(errors[0])
                continue
            runs.append(_repeat(run.comparisons, twin.name, gate))
            finished(runs[-1])
    except KeyboardInterrupt:
        interrupted = True
    outcome = Outcome(measured=len(runs), failed=len(failures), interrupted=interrupted)
    return Calibration(
        strategy=arm.name,
        inject=inject,
        gate=gate.text,
        floor=request.rules.floor,
        rates=[_rate("trials", runs, runs)],
        failures=failures,
        exit_code=exit_code(outcome),
    )


def calibrate_simulated(
    models: Sequence[str], gate: Gate, repeats: int, inject: str | None, rules: Rules, seed: int = 0
) -> Calibration:
    """The same on times drawn from noise.MODELS, all pairs of which are valid; ``gate`` is on a clock."""
    loss = injection.parse(inject).share if inject else 0.0
    rng = np.random.default_rng(seed)
    return Calibration(
        strategy=None,
        inject=inject,
        gate=gate.text,
        floor=rules.floor,
        rates=[_rate(name, _simulated(rng, name, gate, repeats, loss, rules.floor)) for name in models],
        failures=[],
        exit_code=ExitCode.OK,
    )


def _simulated(
    rng: np.random.Generator, model: str, gate: Gate, repeats: int, loss: float, floor: float
) -> list[Repeat]:
    log_times = noise.simulate(rng, repeats, sequential.LOOKS[-1], -np.log1p(-loss), noise.MODELS[model])
    sides = (np.exp(-side) if gate.metric.direction == "higher" else np.exp(side) for side in log_times)
    return [
        _looked(Question("simulated", model, gate.metric, reference, candidate, gate.tolerance, floor, True))
        for reference, candidate in zip(*sides, strict=True)
    ]


def _looked(whole: Question) -> Repeat:
    """The verdict at the first look that has one, as in a run."""
    for look in sequential.LOOKS:
        seen = replace(whole, reference=whole.reference[:look], candidate=whole.candidate[:look])
        last = look == sequential.LOOKS[-1]
        (found,) = judge([seen], level=sequential.LEVEL, last_look=last)
        if last or found.verdict is not Verdict.INCONCLUSIVE:
            return _told(found)
    raise AssertionError("there is a last look")


def _told(found: Judgement) -> Repeat:
    ratio = found.ratio
    assert ratio is not None  # a simulated pair always has one
    return Repeat(
        verdict=found.verdict,
        pairs=ratio.n,
        estimate=ratio.estimate,
        low=ratio.low,
        high=ratio.high,
        reason=found.reason,
    )


def _repeat(comparisons: Sequence[Comparison], twin: str, gate: Gate) -> Repeat:
    found = next(one for one in comparisons if (one.strategy, one.metric) == (twin, gate.metric.name))
    return Repeat(
        verdict=found.verdict,
        pairs=found.pairs,
        estimate=found.estimate,
        low=found.low,
        high=found.high,
        reason=found.reason,
    )


def _rate(source: str, repeats: Sequence[Repeat], runs: list[Repeat] | None = None) -> Rate:
    verdicts = Counter("none" if one.verdict is None else one.verdict.value for one in repeats)
    regressed = verdicts[Verdict.REGRESSED.value]
    at_least, at_most = binomial_bounds(regressed, len(repeats), LEVEL)
    return Rate(
        source=source,
        repeats=len(repeats),
        regressed=regressed,
        at_least=at_least,
        at_most=at_most,
        verdicts=dict(sorted(verdicts.items())),
        pairs=sum(one.pairs for one in repeats) / len(repeats) if repeats else None,
        runs=runs or [],
    )
