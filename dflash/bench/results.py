"""A run and its trials: the records, their JSON, and how trials become an arm's figures and a comparison.

NaN, null and zero are three things: a figure that is not finite is refused where it enters, null means that
it was not measured, and zero is zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dflash.bench import statistics
from dflash.bench.machine import Machine
from dflash.bench.metrics import METRICS, Metric
from dflash.bench.verdict import FLOOR, TOLERANCE, Judgement, Outcome, Verdict, exit_code, judge, run_verdict
from dflash.errors import ExitCode, TrialError

if TYPE_CHECKING:
    import pandas as pd

    from dflash.plugin_manager import StrategyRecord

SCHEMA_VERSION = 1


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One trial as it was measured.

    ``pair`` is unique within the run and holds at most one trial of the reference and one of a candidate;
    ``slot`` is the place in it, 0 or 1. ``losses`` has one entry per measured window, None for a window of
    weight zero. ``stages`` maps stage and state (busy, starved, blocked...) to the share of the wall time. A
    trial that is ``ok`` processed tokens and learned from them; TrialError otherwise, and on any figure that
    is not finite.
    """

    pair: int
    slot: int
    arm: str
    seed: int
    status: Literal["ok", "failed"]
    error: str | None = None
    metrics: dict[str, float | None] = {}
    losses: list[float | None] = []
    plan_digest: str | None = None
    stages: dict[str, dict[str, float]] = {}
    bottleneck: str | None = None
    steal_seconds: float | None = None
    load: float | None = None

    def __post_init__(self) -> None:
        if (self.status == "failed") != (self.error is not None):
            raise TrialError(f"{self.where}: a trial has an error if, and only if, it failed")
        unknown = self.metrics.keys() - METRICS.keys()
        if unknown:
            raise TrialError(f"{self.where}: unknown metrics {', '.join(sorted(unknown))}")
        wrong = _not_finite([self.metrics, self.losses, self.stages, self.steal_seconds, self.load])
        if wrong is not None:
            raise TrialError(
                f"{self.where}: a figure is {wrong}; metrics {self.metrics}, losses {self.losses}"
            )
        if self.status == "ok" and not (self.metrics.get("tok_s") or 0) > 0:
            raise TrialError(
                f"{self.where}: no real token was measured (tok_s is {self.metrics.get('tok_s')})"
            )
        if self.status == "ok" and all(loss is None for loss in self.losses):
            raise TrialError(f"{self.where}: no window had a loss")

    @property
    def where(self) -> str:
        return f"{self.arm}, pair {self.pair}, seed {self.seed}"

    @property
    def ok(self) -> bool:
        return self.status == "ok"


class Plugin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a strategy came from."""

    distribution: str
    version: str
    file_hash: str

    @classmethod
    def of(cls, record: StrategyRecord) -> Plugin:
        return cls(distribution=record.distribution, version=record.version, file_hash=record.sha256)


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy's part of a run; ``strategy`` is its display name, ``plan`` holds at least the digest."""

    strategy: str
    options: dict[str, Any]
    plugin: Plugin
    plan: dict[str, Any] = {}
    metrics: dict[str, float | None] = {}
    intervals: dict[str, tuple[float, float]] = {}
    error: str | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """``estimate``, ``low`` and ``high`` are the ratio strategy / reference of the metric itself."""

    strategy: str
    reference: str
    metric: str
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    pairs: int = 0
    verdict: Verdict | None = None
    reason: str


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the run was asked to do; ``trainer`` holds the trainer's own settings."""

    token_budget: int
    accumulation: int
    drafters: int
    warmup_windows: int
    windows: int
    rounds: int
    seed: int
    level: float = statistics.LEVEL
    floor: float = FLOOR
    tolerance: float = TOLERANCE
    trainer: dict[str, Any] = {}


class Data(msgspec.Struct, frozen=True, kw_only=True):
    """What the run was trained on; ``tokens`` are real tokens."""

    name: str
    fingerprint: str
    samples: int
    tokens: int


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """What is written as JSON, for others to read."""

    def to_json(self, indent: int = 0) -> bytes:
        """As UTF-8 JSON, on one line or indented. ValueError on a value that JSON cannot hold."""
        wrong = _not_finite(msgspec.to_builtins(self))
        if wrong is not None:
            raise ValueError(f"a {type(self).__name__} holds {wrong}, which JSON cannot say")
        text = msgspec.json.encode(self)
        return msgspec.json.format(text, indent=indent) if indent else text


class Run(Document, frozen=True, kw_only=True):
    """A whole run, as its JSON shows it. Later versions add keys and rename none."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    verdict: Verdict
    exit_code: ExitCode
    reference: str
    arms: list[Arm]
    comparisons: list[Comparison]
    settings: Settings
    data: Data
    machine: Machine


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one arm over all its trials, and why they cannot be trusted, if so."""

    metrics: dict[str, float | None]
    intervals: dict[str, tuple[float, float]]
    error: str | None


def frame(trials: Iterable[Trial]) -> pd.DataFrame:
    """One row per trial: pair, slot, arm, seed, status, and one float64 column per metric, NaN where null."""
    import pandas as pd

    keys = ("pair", "slot", "arm", "seed", "status")
    rows = [[getattr(t, key) for key in keys] + [t.metrics.get(name) for name in METRICS] for t in trials]
    table = pd.DataFrame(rows, columns=[*keys, *METRICS])
    return table.astype(dict.fromkeys(METRICS, "float64"))


def summarise(trials: Sequence[Trial], level: float = statistics.LEVEL) -> dict[str, Summary]:
    """Each arm's figures, in order of first appearance.

    A metric is the median over the arm's trials that are ok, and null if one of them lacks it: a figure never
    stands for a part of its trials. Clocks have the interval of statistics.median_interval, where there are
    trials enough. An exact metric, plan digest or loss that one seed gave twice and differently is the arm's
    error, and such a metric is null; a failed trial is the arm's error too, the first one.
    """
    arms = dict.fromkeys(trial.arm for trial in trials)
    return {arm: _summary([trial for trial in trials if trial.arm == arm], level) for arm in arms}


def _summary(trials: Sequence[Trial], level: float) -> Summary:
    table = frame(trial for trial in trials if trial.ok)
    medians = table[list(METRICS)].median(skipna=False).to_dict()
    values = {name: None if math.isnan(medians[name]) else float(medians[name]) for name in METRICS}
    intervals = {}
    for metric in METRICS.values():
        if metric.gate_rule == "paired" and values[metric.name] is not None:
            bounds = statistics.median_interval(table[metric.name].to_numpy(), level)
            if bounds.low is not None and bounds.high is not None:
                intervals[metric.name] = (bounds.low, bounds.high)
    unequal = dict(_unequal_repeats([trial for trial in trials if trial.ok]))
    values |= dict.fromkeys(unequal.keys() & METRICS.keys())
    errors = [trial.error for trial in trials if not trial.ok] + list(unequal.values())
    return Summary(metrics=values, intervals=intervals, error=errors[0] if errors else None)


def _unequal_repeats(trials: Iterable[Trial]) -> Iterator[tuple[str, str]]:
    """What trials of one seed gave differently: the name of the figure, and the difference in words."""
    exact = [metric.name for metric in METRICS.values() if metric.gate_rule == "exact"]
    first_of: dict[int, Trial] = {}
    for trial in trials:
        first = first_of.setdefault(trial.seed, trial)
        figures: list[tuple[str, object, object]] = [
            ("plan_digest", first.plan_digest, trial.plan_digest),
            ("losses", first.losses, trial.losses),
            *((name, first.metrics.get(name), trial.metrics.get(name)) for name in exact),
        ]
        for name, one, other in figures:
            if one != other:
                yield (
                    name,
                    f"{trial.arm}: {name} is {one} in pair {first.pair} but {other} in pair {trial.pair}, "
                    f"both with seed {trial.seed}: the strategy or the trainer is not deterministic",
                )


def compare(
    trials: Sequence[Trial],
    reference: str,
    floor: float = FLOOR,
    tolerance: float = TOLERANCE,
    level: float = statistics.LEVEL,
) -> list[Comparison]:
    """Every other arm against ``reference``, for every clock, over the pairs in which both trials are ok."""
    pairs: dict[int, dict[str, Trial]] = {}
    for trial in trials:
        sides = pairs.setdefault(trial.pair, {})
        if trial.arm in sides:
            raise TrialError(f"{trial.where}: the pair has a trial of this arm already")
        sides[trial.arm] = trial
    decide = partial(judge, floor=floor, tolerance=tolerance, level=level)
    comparisons = []
    for arm in dict.fromkeys(trial.arm for trial in trials if trial.arm != reference):
        both = [
            (sides[reference], sides[arm]) for sides in pairs.values() if sides.keys() >= {reference, arm}
        ]
        good = [(before.metrics, after.metrics) for before, after in both if before.ok and after.ok]
        for metric in (metric for metric in METRICS.values() if metric.gate_rule == "paired"):
            named = partial(Comparison, strategy=arm, reference=reference, metric=metric.name)
            values = [(before.get(metric.name), after.get(metric.name)) for before, after in good]
            comparisons.append(_comparison(named, metric, values, decide, level))
    return comparisons


def _comparison(
    named: Callable[..., Comparison],
    metric: Metric,
    values: Sequence[tuple[float | None, float | None]],
    decide: Callable[..., Judgement],
    level: float,
) -> Comparison:
    if not values:
        return named(verdict=Verdict.ERROR, reason="no pair in which both trials worked")
    usable = [(before, after) for before, after in values if before and after]
    if len(usable) < len(values):
        return named(reason=f"{metric.name} is null or zero in a pair: no ratio")
    ratio = statistics.paired_ratio([before for before, _ in usable], [after for _, after in usable], level)
    judged = decide(metric, ratio.estimate, ratio.low, ratio.high, ratio.n)
    return named(
        estimate=ratio.estimate,
        low=ratio.low,
        high=ratio.high,
        pairs=ratio.n,
        verdict=judged.verdict,
        reason=judged.reason,
    )


def assemble(
    run_id: str,
    reference: str,
    arms: Sequence[Arm],
    trials: Sequence[Trial],
    settings: Settings,
    data: Data,
    machine: Machine,
    interrupted: bool = False,
) -> Run:
    """The run that ``trials`` add up to: ``arms`` as they were asked for, with their figures filled in.

    An arm without a trial that finished has that as its error: missing is never a pass.
    """
    summaries = summarise(trials, settings.level)
    missing = Summary(metrics=dict.fromkeys(METRICS), intervals={}, error="no trial of it finished")
    found = [summaries.get(arm.strategy, missing) for arm in arms]
    measured = [
        msgspec.structs.replace(arm, metrics=s.metrics, intervals=s.intervals, error=arm.error or s.error)
        for arm, s in zip(arms, found, strict=True)
    ]
    outcome = Outcome(
        measured=sum(trial.ok for trial in trials),
        failed=sum(arm.error is not None for arm in measured) if trials else 0,
        interrupted=interrupted,
    )
    return Run(
        run_id=run_id,
        verdict=run_verdict(outcome),
        exit_code=exit_code(outcome),
        reference=reference,
        arms=measured,
        comparisons=compare(trials, reference, settings.floor, settings.tolerance, settings.level),
        settings=settings,
        data=data,
        machine=machine,
    )


def _not_finite(value: object) -> float | None:
    """The first float in nested lists and dictionaries that is NaN or infinite."""
    if isinstance(value, float):
        return None if math.isfinite(value) else value
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return None
    return next((wrong for wrong in map(_not_finite, value) if wrong is not None), None)
