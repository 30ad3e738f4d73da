"""What the trials and plans of a run say about one arm against its partner, metric by metric."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from dflash.bench import statistics
from dflash.bench.gates import Gate, Rules
from dflash.bench.metrics import METRICS, Metric
from dflash.bench.pairs import Duel
from dflash.bench.results import Arm, Comparison, Trial
from dflash.bench.verdict import TOLERANCE, Judgement, Question, Verdict, judge, judge_exact
from dflash.errors import TrialError

_PER_TOKEN = ("tok_s", "loss_tok_s")
"""rates that a strategy with less padding explains"""


def compare(
    trials: Sequence[Trial],
    duels: Sequence[Duel],
    rules: Rules = Rules(),  # noqa: B008  (frozen)
    *,
    level: float = statistics.LEVEL,
    last_look: bool = True,
    invalid: Collection[int] = (),
) -> list[Comparison]:
    """Every duel for every clock, over the pairs in which both trials are ok and which are not ``invalid``.

    A clock without a gate is compared for information. All are judged together, since the level of a gated
    one depends on how many there are.

    Raises:
        TrialError: a pair holds two trials of one arm.
    """
    asked = _asked(trials, duels, rules, invalid)
    answers = iter(judge([one for _, _, one, _ in asked if one], level=level, last_look=last_look))
    return [
        _comparison(duel, metric, next(answers) if question else None, count, rules)
        for duel, metric, question, count in asked
    ]


def questions(
    trials: Sequence[Trial], duels: Sequence[Duel], rules: Rules, invalid: Collection[int]
) -> list[Question]:
    """What compare has judged, each question with its pairs."""
    return [question for _, _, question, _ in _asked(trials, duels, rules, invalid) if question]


def _asked(
    trials: Sequence[Trial], duels: Sequence[Duel], rules: Rules, invalid: Collection[int]
) -> list[tuple[Duel, Metric, Question | None, int]]:
    """Every clock of every duel, None for a question whose values have no ratio, and the number of pairs."""
    pairs = _pairs(trial for trial in trials if trial.pair not in invalid)
    asked = []
    for duel in duels:
        for metric in METRICS.values():
            if duel.reference is None or metric.gate_rule != "paired":
                continue
            values = _values(pairs, duel, metric)
            usable = all(before and after for before, after in values)
            question = _question(duel, metric, values, pairs=pairs, rules=rules) if usable else None
            asked.append((duel, metric, question, len(values)))
    return asked


def compare_exact(arms: Sequence[Arm], duels: Sequence[Duel], rules: Rules) -> list[Comparison]:
    """Every duel for every exact metric that a gate binds, by the figures of the arms."""
    by_name = {arm.strategy: arm for arm in arms}
    found = []
    for duel in duels:
        if duel.reference is None:
            continue
        for metric, gate in _bound_exactly(duel.candidate, rules):
            values = [by_name[name].metrics.get(metric.name) for name in (duel.reference, duel.candidate)]
            answer = judge_exact(
                metric, values[0], values[1], gate.tolerance, same_strategy=duel.same_strategy
            )
            found.append(
                exact_comparison(
                    duel.candidate, duel.reference, metric, (values[0], values[1]), answer, rules
                )
            )
    return found


def exact_comparison(
    arm: str,
    partner: str,
    metric: Metric,
    values: tuple[float | None, float | None],
    answer: Judgement,
    rules: Rules,
    note: str = "",
) -> Comparison:
    """The comparison of two exact ``values``, the partner's first."""
    before, after = values
    gate = rules.gate_of(arm, metric.name)
    return Comparison(
        strategy=arm,
        reference=partner,
        metric=metric.name,
        estimate=after / before if before and after is not None else None,
        verdict=answer.verdict,
        reason=answer.reason + note,
        gate=gate.text if gate else None,
        tolerance=gate.tolerance if gate else None,
        suspicious=answer.suspicious,
    )


def unanswered(
    arms: Sequence[str],
    comparisons: Sequence[Comparison],
    rules: Rules,
    why: Mapping[str, str] = MappingProxyType({}),
) -> list[Comparison]:
    """A NO_BASELINE for every gate that binds an arm, or names one, and was compared with nothing.

    ``arms`` are the display names that a gate without a strategy binds; ``why`` says of some of them why
    they have no partner.
    """
    answered = {(one.strategy, one.metric) for one in comparisons if one.gate is not None}
    found = []
    for gate in rules.gates:
        bound = [arm for arm in arms if rules.gate_of(arm, gate.metric.name) is gate]
        if gate.strategy is not None and not bound and not any(one.gate == gate.text for one in comparisons):
            bound = [gate.strategy]
        for arm in bound:
            if (arm, gate.metric.name) in answered:
                continue
            reason = no_partner(arm, gate.metric, why.get(arm)) if arm in arms else f"{arm} was not compared"
            found.append(
                Comparison(
                    strategy=arm,
                    reference="nothing",
                    metric=gate.metric.name,
                    verdict=Verdict.NO_BASELINE,
                    reason=reason,
                    gate=gate.text,
                    tolerance=gate.tolerance,
                )
            )
    return found


def no_partner(arm: str, metric: Metric, why: str | None = None) -> str:
    """What a gate says that has nothing to compare an arm with."""
    if why is not None:
        return f"nothing to compare the {metric.name} of {arm} with: {why}"
    if metric.gate_rule == "paired":
        return (
            f"{metric.name} is a clock, and {arm} has no partner in this run: name a second strategy, or "
            "--against REV (a clock stored by another job would raise 27 to 37 % false alarms)"
        )
    if metric.gate_rule == "learning":
        return (
            f"nothing to compare the {metric.name} of {arm} with: --learning compares strategies of one run"
        )
    return (
        f"nothing to compare the {metric.name} of {arm} with: name a second strategy, --against REV or "
        "--baseline NAME"
    )


def _bound_exactly(arm: str, rules: Rules) -> Iterator[tuple[Metric, Gate]]:
    for metric in METRICS.values():
        gate = rules.gate_of(arm, metric.name)
        if metric.gate_rule == "exact" and gate is not None:
            yield metric, gate


def _pairs(trials: Iterable[Trial]) -> dict[int, dict[str, Trial]]:
    """Trials by pair and arm."""
    pairs: dict[int, dict[str, Trial]] = {}
    for trial in trials:
        sides = pairs.setdefault(trial.pair, {})
        if trial.arm in sides:
            raise TrialError(f"{trial.where}: the pair has a trial of this arm already")
        sides[trial.arm] = trial
    return pairs


def _values(
    pairs: Mapping[int, Mapping[str, Trial]], duel: Duel, metric: Metric
) -> list[tuple[float | None, float | None]]:
    both = [
        (sides[str(duel.reference)], sides[duel.candidate])
        for sides in pairs.values()
        if sides.keys() >= {duel.reference, duel.candidate}
    ]
    return [
        (before.metrics.get(metric.name), after.metrics.get(metric.name))
        for before, after in both
        if before.ok and after.ok
    ]


def _question(
    duel: Duel,
    metric: Metric,
    values: Sequence[tuple[float | None, float | None]],
    *,
    pairs: Mapping[int, Mapping[str, Trial]],
    rules: Rules,
) -> Question:
    gate = rules.gate_of(duel.candidate, metric.name)
    columns = np.array(values, dtype=np.float64).reshape(-1, 2)
    return Question(
        name=f"{duel.candidate}.{metric.name}",
        strategy=duel.candidate,
        metric=metric,
        reference=columns[:, 0],
        candidate=columns[:, 1],
        tolerance=gate.tolerance if gate else TOLERANCE,
        floor=rules.floor,
        gated=gate is not None,
        expected=_explained(pairs, duel) if metric.name in _PER_TOKEN else 1.0,
    )


def _explained(pairs: Mapping[int, Mapping[str, Trial]], duel: Duel) -> float:
    """The ratio of rates that less padding explains: that of the two plans' padding efficiencies."""
    for before, after in _values(pairs, duel, METRICS["padding_efficiency"]):
        if before and after:
            return after / before
    return 1.0


def _comparison(duel: Duel, metric: Metric, answer: Judgement | None, pairs: int, rules: Rules) -> Comparison:
    gate = rules.gate_of(duel.candidate, metric.name)
    ratio = answer.ratio if answer else None
    if answer is None:
        verdict = Verdict.ERROR if gate else None
        reason = f"{metric.name} is null or zero in a pair: no ratio"
    else:
        verdict, reason = answer.verdict, answer.reason
    return Comparison(
        strategy=duel.candidate,
        reference=str(duel.reference),
        metric=metric.name,
        estimate=ratio.estimate if ratio else None,
        low=ratio.low if ratio else None,
        high=ratio.high if ratio else None,
        pairs=pairs if answer else 0,
        verdict=verdict,
        reason=reason,
        gate=gate.text if gate else None,
        tolerance=gate.tolerance if gate else None,
        floor=rules.floor,
        minimum_detectable=answer.minimum_detectable if answer else None,
        suspicious=answer.suspicious if answer else False,
    )
