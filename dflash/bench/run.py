"""A run of the benchmark: arms and their partners, trials in pairs, results kept whatever happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dflash.bench import (
    baseline,
    baseline_gate,
    comparisons,
    loop,
    machine,
    results,
    revision,
    store,
    verdict,
)
from dflash.bench.baseline import Baseline
from dflash.bench.field import WARMUP_WINDOWS, Field, RunRequest, open_field, refuse_without_partner
from dflash.bench.gates import Rules
from dflash.bench.learning.exchange import Answer, LearningTrialRequest
from dflash.bench.learning.gates import compare_learning, failures
from dflash.bench.learning.results import LearningReport
from dflash.bench.learning.run import LearningRequest, learning_run
from dflash.bench.loop import Job, Measured, Progress
from dflash.bench.results import Comparison, Run, Trial
from dflash.bench.summary import filled
from dflash.command_line import say
from dflash.config import Config
from dflash.data.sources import open_store, target_folder
from dflash.data.store import TokenStore
from dflash.models.shape import shape_for_target

__all__ = ["Outcome", "RunRequest", "run_benchmark"]


@dataclass(frozen=True)
class Outcome:
    """A finished or interrupted run, and where it is stored; None where nothing was measured."""

    run: Run
    trials: list[Trial]
    stored: Path | None
    tracebacks: list[str]


def run_benchmark(
    request: RunRequest,
    progress: Progress,
    learned: Callable[[LearningTrialRequest, Answer], None] | None = None,
) -> Outcome:
    """Measure all arms and store the run. ``learned`` is told of every learning trial that ends.

    An arm whose trial fails gets no further ones; the others go on. Ctrl-C ends the trial at hand: the run
    then holds the pairs that were finished, and no learning trial.

    Raises:
        UsageError: wrong settings, data, target or revision; nothing has been run.
        NoBaselineError: a gate has nothing to be compared with, and that must fail; nothing has been run.
    """
    deadline = None if request.max_time is None else time.monotonic() + request.max_time
    config = msgspec.structs.replace(
        request.config, training=msgspec.structs.replace(request.config.training, max_bad_samples=0)
    )
    shape_for_target(target_folder(config.data), config.drafter)
    if request.directory is not None:
        store.open_directory(request.directory)
    stored, use = baseline.open_baseline(request.baseline, request.rules, request.directory)
    data = open_store(config.data, say)  # late, as it may take seconds
    with open_field(request, config) as field_:
        refuse_without_partner(request, field_)
        job = Job(
            tasks=field_.tasks,
            duels=field_.duels,
            rules=request.rules,
            looks=request.looks,
            seed=config.training.seed,
            deadline=deadline,
        )
        measured = loop.measure(job, progress)
    arms = filled(
        [_planned(arm, measured) for arm in field_.arms],
        measured.trials,
        job.looks.level,
        [one.pair for one in measured.invalid],
    )
    learning = _learned(request, config, arms, measured, learned)
    run = _assembled(request, config, data, field_, job, measured, arms, learning, stored, use)
    kept = bool(measured.trials) and request.directory is not None
    path = store.save(run, measured.trials, request.directory) if kept and request.directory else None
    return Outcome(run, measured.trials, path, measured.tracebacks)


def _learned(
    request: RunRequest,
    config: Config,
    arms: Sequence[results.Arm],
    measured: Measured,
    learned: Callable[[LearningTrialRequest, Answer], None] | None,
) -> LearningReport | None:
    """What the learning trials say; Ctrl-C in them keeps what is timed."""
    if not request.learning_seeds or measured.interrupted:
        return None
    rates = {arm.strategy: arm.metrics.get("tok_s") for arm in arms}
    asked = LearningRequest(
        arms=request.arms,
        config=config,
        seeds=request.learning_seeds,
        reference=request.reference,
        blocked=request.blocked,
        speeds={name: rate for name, rate in rates.items() if rate is not None},
    )
    try:
        return learning_run(asked, learned or (lambda *_: None))
    except KeyboardInterrupt:
        measured.interrupted = True
        return None


def _assembled(
    request: RunRequest,
    config: Config,
    data: TokenStore,
    field_: Field,
    job: Job,
    measured: Measured,
    arms: list[results.Arm],
    learning: LearningReport | None,
    stored: Baseline | None,
    use: results.BaselineUse | None,
) -> Run:
    settings, facts = _settings(request, config), _data(config, data)
    found = loop.judged(job, measured, last_look=True)
    if learning is not None:
        found += compare_learning(learning, request.rules)
    if stored is None:
        found += comparisons.compare_exact(arms, field_.duels, request.rules)
    elif use is not None:
        found += baseline_gate.compare_with(
            stored,
            use.name,
            [arm for arm in arms if arm.revision is None],
            request.rules,
            data=facts,
            request=baseline.request_of(settings),
            trial=baseline.trial_settings(settings),
        )
    candidates = [duel.candidate for duel in field_.duels]
    found += comparisons.unanswered(candidates, found, request.rules, field_.without_partner)
    outcome = _outcome(request.rules, measured, arms, learning, found)
    described = next((m.machine for m in measured.measurements.values() if m.machine), None)
    described = described or machine.describe()
    return Run(
        run_id=store.new_run_id(),
        verdict=verdict.run_verdict(outcome),
        exit_code=verdict.exit_code(outcome),
        reference=field_.duels[0].reference or field_.duels[0].candidate,
        arms=arms,
        comparisons=found,
        settings=settings,
        data=facts,
        machine=described,
        looks=measured.looks,
        invalid_pairs=measured.invalid,
        learning=learning,
        baseline=use,
        revision=revision.current(),
        against=field_.against,
        class_key=machine.class_key(described),
        command_line=list(request.command_line),
    )


def _outcome(
    rules: Rules,
    measured: Measured,
    arms: Sequence[results.Arm],
    learning: LearningReport | None,
    found: Sequence[Comparison],
) -> verdict.Outcome:
    gated = [one for one in found if one.gate is not None]
    return rules.outcome(
        [one.verdict for one in gated],
        measured=sum(trial.ok for trial in measured.trials),
        failed=(sum(arm.error is not None for arm in arms) if measured.trials else 0) + failures(learning),
        suspicious=any(one.suspicious for one in gated),
        interrupted=measured.interrupted,
    )


def _planned(arm: results.Arm, measured: Measured) -> results.Arm:
    first = measured.measurements.get(arm.strategy)
    plan = {} if first is None else {"digest": first.plan_digest, "windows": first.windows_per_epoch}
    return msgspec.structs.replace(arm, plan=plan)


def _settings(request: RunRequest, config: Config) -> results.Settings:
    rules = request.rules
    return results.Settings(
        token_budget=config.batching.token_budget,
        accumulation=config.batching.accumulation,
        drafters=config.pipeline.drafters,
        warmup_windows=WARMUP_WINDOWS,
        windows=request.windows,
        rounds=request.looks.at[-1],
        seed=config.training.seed,
        level=request.looks.level,
        floor=rules.floor,
        trainer=msgspec.to_builtins(config),
        gates=[gate.text for gate in rules.gates],
        strict=rules.strict,
        on_inconclusive=rules.on_inconclusive,
        on_missing_baseline=rules.on_missing_baseline,
        max_time=request.max_time,
    )


def _data(config: Config, data: TokenStore) -> results.Data:
    planned = data.lengths[data.rows(held_out=False)]
    return results.Data(
        name=config.data.store,
        fingerprint=data.fingerprint,
        samples=len(data),
        tokens=int(data.lengths.sum()),
        lengths=results.lengths_fingerprint(planned),
    )
