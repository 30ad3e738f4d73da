"""From the learning trials of all seeds to what they say of each strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from dflash.bench.learning import curves, stability
from dflash.bench.learning.design_effect import Effect, Estimate, combine
from dflash.bench.learning.exchange import FrozenPoint, LearningTrial
from dflash.bench.learning.pareto import Place, dominated
from dflash.bench.learning.results import Bounds, LearningArm
from dflash.bench.learning.verdict import Evidence, judge
from dflash.bench.statistics import Interval, hodges_lehmann, least_pairs, paired_ratio
from dflash.bench.verdict import Verdict

Trials = Mapping[int, LearningTrial]
"""of one arm, by seed"""


def compare(
    arms: Sequence[str],
    reference: str,
    trials: Mapping[str, Trials],
    errors: Mapping[str, str],
    speeds: Mapping[str, float],
    speed_measured: bool,
    level: float,
) -> list[LearningArm]:
    """Each arm's figures and verdict, in the order of ``arms``.

    Args:
        trials: of the arms whose trials all worked.
        errors: of the others, why.
        speeds: real tokens per second of arms, or what predicts them.
    """
    frozen = {name: _frozen(trials.get(reference, {}), name) for name in arms}
    effects = {name: _combined(frozen[name], lambda point: point.gradient, level) for name in arms}
    relative = {name: speed / speeds[reference] for name, speed in speeds.items() if reference in speeds}
    beaten = dominated(
        {
            name: Place(relative[name], effect)
            for name, effect in effects.items()
            if effect and name in relative
        }
    )
    found = []
    for name in arms:
        if name in errors or name not in trials:
            error = errors.get(name, "no trial of it finished")
            found.append(
                LearningArm(strategy=name, verdict=Verdict.ERROR, line=f"{name}: {error}", error=error)
            )
            continue
        found.append(
            _arm(
                name,
                reference,
                trials[name],
                trials.get(reference, {}),
                frozen[name],
                relative.get(name),
                speed_measured,
                beaten.get(name),
                level,
            )
        )
    return found


def _arm(
    name: str,
    reference: str,
    own: Trials,
    others: Trials,
    frozen: Sequence[Sequence[FrozenPoint]],
    speed: float | None,
    speed_measured: bool,
    beaten_by: str | None,
    level: float,
) -> LearningArm:
    seeds = sorted(own.keys() & others.keys())
    pairs = [(others[seed], own[seed]) for seed in seeds]
    points = [point for by_point in frozen for point in by_point]
    effect = _combined(frozen, lambda point: point.gradient, level)
    loss_effect = _combined(frozen, lambda point: point.loss_window, level)
    incomparable = next((why for pair in pairs if (why := unequal(*pair)) is not None), None)
    enough = len(seeds) >= least_pairs(level)
    forgotten = [curves.forgetting(trial.curve) for trial in own.values()]
    by_seed: dict[str, list[float | None]] = {
        "design_effect": _by_seed(frozen, lambda point: point.gradient),
        "loss_design_effect": _by_seed(frozen, lambda point: point.loss_window),
        "gradient_diversity": [_mean([point.diversity for point in one]) for one in frozen],
        "final_loss": [trial.curve[-1].loss for trial in own.values()],
    }
    evidence: dict[str, Any] = {"loss": _ratio(pairs, incomparable, level)}
    if enough:
        evidence |= _over_seeds(pairs, incomparable, level)
        goal = curves.target_loss([trial.curve for trial in others.values()])
        by_seed |= {
            "time_to_loss": [curves.tokens_to(trial.curve, goal) for trial in own.values()],
            "loss_spikes": [float(_spikes(trial)) for trial in own.values()],
            "forgetting": [one.most for one in forgotten],
        }
    drift = evidence.pop("forgetting", None)
    verdict, line = judge(
        Evidence(
            strategy=name,
            reference=reference,
            speed=speed,
            speed_measured=speed_measured,
            effect=effect,
            incomparable=incomparable,
            is_reference=name == reference,
            **evidence,
        ),
        level,
    )
    intervals = {"design_effect": effect, "loss_design_effect": loss_effect}
    some, first = next(iter(own.values())), points[0] if points else None
    return LearningArm(
        strategy=name,
        verdict=verdict,
        line=line,
        metrics=_metrics(by_seed, effect, loss_effect),
        intervals={
            key: (one.low, one.high)
            for key, one in intervals.items()
            if one is not None and one.low is not None and one.high is not None
        },
        by_seed=by_seed,
        against_reference={
            key: Bounds(one.estimate, one.low, one.high)
            for key, one in (
                ("final_loss", evidence["loss"]),
                ("time_to_loss", evidence.get("time")),
                ("forgetting", drift),
            )
            if one is not None
        },
        points=[
            Bounds(one.value, one.low, one.high)
            for number in range(min(map(len, frozen), default=0))
            if (one := combine([_effects([by[number]], lambda p: p.gradient) for by in frozen], level))
        ],
        micro_batch_loss_design_effect=_bounds(_combined(frozen, lambda p: p.loss_micro_batch, level)),
        frozen_windows=effect.windows if effect else 0,
        basis=effect.basis if effect else "windows",
        lag_1_cosine=_mean([p.gradient.lag_1_cosine for p in points if p.gradient]),
        successive_design_effect=_mean([p.gradient.successive for p in points if p.gradient]),
        random_diversity=_mean([point.random_diversity for point in points]),
        gradient_cosine=_mean([point.cosine for point in points]),
        noise_scale=_mean([point.noise_scale for point in points]),
        noise_scale_withheld=first.noise_scale_withheld if first else None,
        windows=len(some.windows),
        real_tokens=some.counts.real_tokens,
        short_weight=fmean(trial.weights.short for trial in own.values()),
        long_weight=fmean(trial.weights.long for trial in own.values()),
        drift_by_bin=tuple(np.mean([one.drift_by_bin for one in forgotten], axis=0).tolist()),
        speed=speed,
        dominated_by=beaten_by,
    )


def unequal(reference: LearningTrial, candidate: LearningTrial) -> str | None:
    """Why the losses of two trials must not be compared; None where all is equal that has to be."""
    mine, its = candidate.counts, reference.counts
    for what, one, other in (
        ("real tokens", mine.real_tokens, its.real_tokens),
        ("samples", mine.samples, its.samples),
        ("blocks", mine.anchor_slots, its.anchor_slots),
        ("loss tokens", mine.loss_tokens, its.loss_tokens),
    ):
        if one != other:
            return f"it saw {one} {what}, {reference.strategy} {other}"
    if candidate.first_weights != reference.first_weights:
        return "the first weights differ"
    if candidate.curve[0] != reference.curve[0]:
        return "the held-out samples differ"
    return None


Pairs = Sequence[tuple[LearningTrial, LearningTrial]]


def _ratio(pairs: Pairs, incomparable: str | None, level: float) -> Interval | None:
    """Of the final losses."""
    if not pairs or incomparable:
        return None
    last = [(one.curve[-1].loss, other.curve[-1].loss) for one, other in pairs]
    return paired_ratio([one for one, _ in last], [other for _, other in last], level)


def _over_seeds(pairs: Pairs, incomparable: str | None, level: float) -> dict[str, Any]:
    """What only many seeds can say: spikes, the time to a loss, forgetting."""
    spikes = stability.compare_spikes(
        [_spikes(one) for one, _ in pairs], [_spikes(other) for _, other in pairs]
    )
    drift = hodges_lehmann(
        [curves.forgetting(other.curve).most - curves.forgetting(one.curve).most for one, other in pairs],
        level,
    )
    found: dict[str, Any] = {"spikes": spikes, "forgetting": drift}
    if incomparable:
        return found
    goal = curves.target_loss([one.curve for one, _ in pairs])
    times = [(curves.tokens_to(one.curve, goal), curves.tokens_to(other.curve, goal)) for one, other in pairs]
    # A run that never gets there would have taken its whole length or more: a tie at the budget is the
    # mildest reading, and what is censored is counted beside it.
    budgets = [float(one.counts.real_tokens) for one, _ in pairs]
    reached = [
        tuple(max(1.0, budget if time is None else time) for time in both)
        for both, budget in zip(times, budgets, strict=True)
    ]
    found["time"] = paired_ratio([one for one, _ in reached], [other for _, other in reached], level)
    found["censored"] = sum(other is None for _, other in times) - sum(one is None for one, _ in times)
    return found


def _spikes(trial: LearningTrial) -> int:
    return stability.spikes_of_run(
        [window.loss for window in trial.windows], [window.gradient_norm for window in trial.windows]
    )


def _frozen(trials: Trials, name: str) -> list[list[FrozenPoint]]:
    """Of each seed of the reference's trials, an arm's points."""
    found = [trial.frozen.get(name) for _, trial in sorted(trials.items())]
    return [points for points in found if isinstance(points, list) and points]


Which = Callable[[FrozenPoint], Effect | None]


def _effects(points: Sequence[FrozenPoint], which: Which) -> list[Effect]:
    return [effect for effect in map(which, points) if effect is not None]


def _combined(frozen: Sequence[Sequence[FrozenPoint]], which: Which, level: float) -> Estimate | None:
    return combine([_effects(points, which) for points in frozen], level)


def _by_seed(frozen: Sequence[Sequence[FrozenPoint]], which: Which) -> list[float | None]:
    logs = [_mean([effect.log for effect in _effects(points, which)]) for points in frozen]
    return [None if log is None else float(np.exp(log)) for log in logs]


def _metrics(
    by_seed: Mapping[str, Sequence[float | None]], effect: Estimate | None, loss_effect: Estimate | None
) -> dict[str, float | None]:
    found: dict[str, float | None] = {
        name: _mean(values) if None not in values else None for name, values in by_seed.items()
    }
    if "loss_spikes" in by_seed:
        found["loss_spikes"] = sum(value or 0.0 for value in by_seed["loss_spikes"])
    found["design_effect"] = effect.value if effect else None
    found["loss_design_effect"] = loss_effect.value if loss_effect else None
    return found


def _bounds(estimate: Estimate | None) -> Bounds | None:
    return None if estimate is None else Bounds(estimate.value, estimate.low, estimate.high)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
