"""Stored runs judged again, by the same rules and the same code as when they ran."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dflash.bench import baseline, baseline_gate, comparisons, verdict
from dflash.bench.gates import Rules
from dflash.bench.learning.gates import compare_learning, failures
from dflash.bench.pairs import Duel
from dflash.bench.results import BaselineUse, Comparison, Run, Trial


def again(run: Run, trials: Sequence[Trial], rules: Rules) -> Run:
    """``run`` with the verdicts that ``rules`` give its own pairs."""
    duels = duels_of(run)
    invalid = {one.pair for one in run.invalid_pairs}
    found = comparisons.compare(trials, duels, rules, level=run.settings.level, invalid=invalid)
    found += comparisons.compare_exact(run.arms, duels, rules)
    if run.learning is not None:
        found += compare_learning(run.learning, rules)
    return _judged(run, trials, rules, found, [duel.candidate for duel in duels])


def against(before: Run, run: Run, trials: Sequence[Trial], rules: Rules) -> Run:
    """``run`` with the verdicts that it has against ``before``."""
    label = f"run {before.run_id}"
    stored = baseline.of_run(before)
    request, trial = baseline.request_of(run.settings), baseline.trial_settings(run.settings)
    found = baseline_gate.compare_with(
        stored,
        label,
        [arm for arm in run.arms if arm.revision is None],
        rules,
        data=run.data,
        request=request,
        trial=trial,
        numpy=run.machine.versions.get("numpy"),
    )
    plans, _ = baseline_gate.differences(stored, run.data, request, trial)
    use = BaselineUse(name=label, path=before.run_id, differences=plans)
    names = [arm.strategy for arm in run.arms if arm.revision is None]
    return _judged(msgspec.structs.replace(run, baseline=use), trials, rules, found, names)


def duels_of(run: Run) -> list[Duel]:
    """Who met whom: every arm its own other revision, or all the reference."""
    names = [arm.strategy for arm in run.arms]
    others = {arm.strategy.rpartition("@")[0]: arm.strategy for arm in run.arms if arm.revision is not None}
    if others:
        return [
            Duel(others.get(name), name, same_strategy=True) for name in names if name not in others.values()
        ]
    return [
        Duel(run.reference, name, same_strategy=name.partition("@")[0] == run.reference.partition("@")[0])
        for name in names
        if name != run.reference
    ] or [Duel(None, run.reference)]


def _judged(
    run: Run, trials: Sequence[Trial], rules: Rules, found: list[Comparison], candidates: Sequence[str]
) -> Run:
    found = found + comparisons.unanswered(candidates, found, rules)
    gated = [one for one in found if one.gate is not None]
    outcome = rules.outcome(
        [one.verdict for one in gated],
        measured=sum(trial.ok for trial in trials),
        failed=sum(arm.error is not None for arm in run.arms) + failures(run.learning),
        suspicious=any(one.suspicious for one in gated),
    )
    return msgspec.structs.replace(
        run,
        comparisons=found,
        verdict=verdict.run_verdict(outcome),
        exit_code=verdict.exit_code(outcome),
        settings=msgspec.structs.replace(
            run.settings,
            gates=[gate.text for gate in rules.gates],
            floor=rules.floor,
            strict=rules.strict,
            on_inconclusive=rules.on_inconclusive,
            on_missing_baseline=rules.on_missing_baseline,
        ),
    )
