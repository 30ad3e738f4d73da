"""A run of the benchmark: arms, trials in pairs, results kept whatever happens."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dflash.bench import machine, results, store
from dflash.bench.exchange import Failure, Measurement, TrialRequest
from dflash.bench.launcher import Launcher
from dflash.bench.pairs import Slot, schedule
from dflash.bench.results import Run, Trial
from dflash.command_line import say
from dflash.config import Config
from dflash.data.sources import open_store, target_folder
from dflash.data.store import TokenStore
from dflash.errors import TrialError, UsageError
from dflash.models.shape import read_json, shape_for_target
from dflash.plugin_manager import Arm

WARMUP_WINDOWS = 2


@dataclass(frozen=True)
class RunRequest:
    """What a run is asked for. The first arm is the reference unless another is named."""

    arms: Sequence[Arm]
    config: Config
    rounds: int
    windows: int
    reference: str | None = None
    blocked: tuple[str, ...] = ()
    directory: Path = store.DIRECTORY


@dataclass(frozen=True)
class Outcome:
    """A finished or interrupted run, and where it is stored; None where nothing was measured."""

    run: Run
    trials: list[Trial]
    stored: Path | None
    tracebacks: list[str]


def run_benchmark(
    request: RunRequest, started: Callable[[Slot], None], ended: Callable[[Trial], None]
) -> Outcome:
    """Measure all arms and store the run. ``started`` and ``ended`` are told of every trial.

    An arm whose trial fails gets no further ones; the others go on. Ctrl-C ends the trial at hand: the run
    then holds the pairs that were finished.

    Raises:
        UsageError: wrong settings, data or target; nothing has been run.
    """
    names = [arm.name for arm in request.arms]
    reference = _reference(request.reference, names)
    candidates = [name for name in names if name != reference]
    config = msgspec.structs.replace(
        request.config, training=msgspec.structs.replace(request.config.training, max_bad_samples=0)
    )
    shape_for_target(target_folder(config.data), config.drafter)
    directory = store.open_directory(request.directory)
    data = open_store(config.data, say)  # last, as it may take seconds

    trials: list[Trial] = []
    plans: dict[str, Measurement] = {}
    tracebacks: list[str] = []
    failed: set[str] = set()
    interrupted = False
    order = list(schedule(reference, candidates, request.rounds, candidate_first=bool(secrets.randbits(1))))
    with Launcher(_model_type(config)) as launcher:
        try:
            for slot in order:
                if slot.arm in failed:
                    continue
                started(slot)
                answer = launcher.run(
                    TrialRequest(slot.arm, config, WARMUP_WINDOWS, request.windows, request.blocked)
                )
                if isinstance(answer, Failure):
                    failed.add(slot.arm)
                    tracebacks.append(answer.traceback)
                else:
                    plans.setdefault(slot.arm, answer)
                trials.append(_trial(slot, config.training.seed, answer))
                ended(trials[-1])
        except KeyboardInterrupt:
            interrupted = True
            trials = _whole_pairs(trials, [slot for slot in order if slot.arm not in failed])
    run = results.assemble(
        run_id=store.new_run_id(),
        reference=reference,
        arms=[_arm(arm, plans.get(arm.name)) for arm in request.arms],
        trials=trials,
        settings=_settings(request, config),
        data=_data(config, data),
        machine=machine.describe(),
        interrupted=interrupted,
    )
    stored = store.save(run, trials, directory) if trials else None
    return Outcome(run, trials, stored, tracebacks)


def _reference(asked: str | None, names: Sequence[str]) -> str:
    if asked is None:
        return names[0]
    if asked not in names:
        raise UsageError(f"--reference {asked!r} is none of the strategies of this run: {', '.join(names)}")
    return asked


def _model_type(config: Config) -> str:
    return str(read_json(target_folder(config.data) / "config.json").get("model_type", "auto"))


def _trial(slot: Slot, seed: int, answer: Measurement | Failure) -> Trial:
    place = {"pair": slot.pair, "slot": slot.slot, "arm": slot.arm, "seed": seed}
    if isinstance(answer, Failure):
        return Trial(**place, status="failed", error=answer.message)  # type: ignore[arg-type]
    try:
        return Trial(
            **place,  # type: ignore[arg-type]
            status="ok",
            metrics=answer.metrics,
            losses=answer.losses,
            plan_digest=answer.plan_digest,
            stages=answer.stages,
            bottleneck=answer.bottleneck,
            steal_seconds=answer.steal_seconds,
            load=answer.load,
        )
    except TrialError as error:
        return Trial(**place, status="failed", error=str(error))  # type: ignore[arg-type]


def _whole_pairs(trials: list[Trial], planned: list[Slot]) -> list[Trial]:
    """What an interrupt leaves: pairs whose planned trials are all there, and the failures."""
    sizes = Counter(slot.pair for slot in planned)
    done = Counter(trial.pair for trial in trials if trial.ok)
    return [trial for trial in trials if not trial.ok or done[trial.pair] == sizes[trial.pair]]


def _arm(arm: Arm, plan: Measurement | None) -> results.Arm:
    return results.Arm(
        strategy=arm.name,
        options=arm.options,
        plugin=results.Plugin.of(arm.record),
        plan={} if plan is None else {"digest": plan.plan_digest, "windows": plan.windows_per_epoch},
    )


def _settings(request: RunRequest, config: Config) -> results.Settings:
    return results.Settings(
        token_budget=config.batching.token_budget,
        accumulation=config.batching.accumulation,
        drafters=1,
        warmup_windows=WARMUP_WINDOWS,
        windows=request.windows,
        rounds=request.rounds,
        seed=config.training.seed,
        trainer=msgspec.to_builtins(config),
    )


def _data(config: Config, data: TokenStore) -> results.Data:
    return results.Data(
        name=config.data.store,
        fingerprint=data.fingerprint,
        samples=len(data),
        tokens=int(data.lengths.sum()),
    )
