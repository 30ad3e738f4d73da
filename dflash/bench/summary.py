"""From trials to figures: each arm's over all its trials."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from dflash.bench import statistics
from dflash.bench.metrics import METRICS
from dflash.bench.results import Arm, Trial

if TYPE_CHECKING:
    import pandas as pd


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


def filled(
    arms: Sequence[Arm],
    trials: Sequence[Trial],
    level: float = statistics.LEVEL,
    invalid: Iterable[int] = (),
) -> list[Arm]:
    """``arms`` as they were asked for, with the figures of their trials.

    An arm without a trial that finished has that as its error: missing is never a pass. Trials of
    ``invalid`` pairs count in no median, but must repeat what others of their seed gave.
    """
    left_out = set(invalid)
    summaries = summarise(trials, level)
    kept = summarise([trial for trial in trials if trial.pair not in left_out], level)
    missing = Summary(metrics=dict.fromkeys(METRICS), intervals={}, error="no trial of it finished")
    found = [(kept.get(arm.strategy, missing), summaries.get(arm.strategy, missing)) for arm in arms]
    return [
        msgspec.structs.replace(
            arm,
            metrics=figures.metrics,
            intervals=figures.intervals,
            error=arm.error or every.error or figures.error,
        )
        for arm, (figures, every) in zip(arms, found, strict=True)
    ]
