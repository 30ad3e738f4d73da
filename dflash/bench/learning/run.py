"""A learning run: every strategy from every seed, as many trials at once as there are cores."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from dflash.batching import windows
from dflash.bench import machine
from dflash.bench.exchange import Failure
from dflash.bench.launcher import Launcher
from dflash.bench.learning import analysis
from dflash.bench.learning.exchange import Answer, LearningTrial, LearningTrialRequest
from dflash.bench.learning.results import LearningReport
from dflash.bench.statistics import LEVEL, least_pairs
from dflash.config import Config
from dflash.data.sources import open_store, target_folder
from dflash.data.store import TokenStore
from dflash.errors import DflashError, ExitCode, UsageError
from dflash.models.shape import read_json, shape_for_target
from dflash.plugin_manager import Arm
from dflash.training.schedule import plan_epoch

SEEDS = 3
TOKENS = 200_000
POOL_TOKENS = 120_000


@dataclass(frozen=True)
class LearningRequest:
    """What a learning run is asked for. The first arm is the reference unless another is named."""

    arms: Sequence[Arm]
    config: Config
    seeds: int = SEEDS
    """from ``config.training.seed`` on"""
    tokens: int = TOKENS
    """real tokens that each trial trains on"""
    pool_tokens: int = POOL_TOKENS
    """real tokens of the samples whose gradients are measured"""
    reference: str | None = None
    blocked: tuple[str, ...] = ()
    speeds: Mapping[str, float] = field(default_factory=dict)
    """tok_s of the arms, from a timed run; without any the plans predict them"""
    at_once: int | None = None
    """trials at once; None: one for each core, and one alone on a GPU"""


def learning_run(
    request: LearningRequest, ended: Callable[[LearningTrialRequest, Answer], None]
) -> LearningReport:
    """Run all trials and compare. ``ended`` is told of every trial.

    The reference's trials measure the gradients of all arms at their weights, so that all are compared at the
    same ones. An arm is an error if a trial of it fails; without the reference there is nothing to compare
    with.

    Raises UsageError for wrong settings, data or target; nothing has been run.
    """
    start = time.perf_counter()
    names = [arm.name for arm in request.arms]
    reference = names[0] if request.reference is None else request.reference
    if reference not in names:
        raise UsageError(f"--reference {reference!r} is none of the strategies: {', '.join(names)}")
    folder = target_folder(request.config.data)
    shape_for_target(folder, request.config.drafter)
    store = open_store(request.config.data)
    speeds = dict(request.speeds) or _predicted(request, store)
    first = request.config.training.seed
    seeds = list(range(first, first + request.seeds))
    # The reference's trials take longest.
    order = [reference, *(name for name in names if name != reference)]
    requests = [
        LearningTrialRequest(
            strategy=name,
            config=_with_seed(request.config, seed),
            tokens=request.tokens,
            pool_tokens=request.pool_tokens,
            measured=tuple(names) if name == reference else (),
            blocked=request.blocked,
        )
        for name in order
        for seed in seeds
    ]
    cores = machine.describe().cores
    with Launcher(str(read_json(folder / "config.json").get("model_type", "auto"))) as launcher:
        answers = launcher.call_all(
            _trial,
            requests,
            request.at_once or _at_once(request.config, cores),
            lambda number, answer: ended(requests[number], answer),
        )
    trials: dict[str, dict[int, LearningTrial]] = {}
    errors: dict[str, str] = {}
    for asked, answer in zip(requests, answers, strict=True):
        if isinstance(answer, Failure):
            seed = asked.config.training.seed
            errors.setdefault(asked.strategy, f"seed {seed}: {answer.message}")
        else:
            trials.setdefault(asked.strategy, {})[answer.seed] = answer
    return LearningReport(
        reference=reference,
        seeds=seeds,
        tokens=request.tokens,
        pool_tokens=request.pool_tokens,
        level=LEVEL,
        speed_measured=bool(request.speeds),
        arms=analysis.compare(
            names,
            reference,
            {name: found for name, found in trials.items() if name not in errors},
            errors,
            speeds,
            bool(request.speeds),
            LEVEL,
        ),
        exit_code=ExitCode.TRIAL_FAILED if errors else ExitCode.OK,
        notes=_notes(request, trials),
        seconds=time.perf_counter() - start,
        cores=cores,
    )


def _trial(request: LearningTrialRequest) -> LearningTrial:
    from dflash.bench.learning.trial import learning_trial

    return learning_trial(request)


def _with_seed(config: Config, seed: int) -> Config:
    return msgspec.structs.replace(config, training=msgspec.structs.replace(config.training, seed=seed))


def _at_once(config: Config, cores: int) -> int:
    import torch

    on_cpu = config.pipeline.devices == "cpu" or not torch.cuda.is_available()
    return cores if on_cpu else 1


def _predicted(request: LearningRequest, store: TokenStore) -> dict[str, float]:
    """Real tokens per unit of work of the plans' costliest drafters; an arm whose plan fails has none."""
    found = {}
    for arm in request.arms:
        drafters = request.config.pipeline.drafters
        try:
            epoch = plan_epoch(arm.strategy, arm.name, store, request.config, 0, drafters)
        except DflashError:
            continue
        length = epoch.request.attention_length
        costs = windows.costs(epoch.plan, epoch.lengths, length).astype(np.float64)
        loads = costs[windows.assign_all(epoch.plan, drafters, epoch.lengths, length)].sum(axis=1)
        found[arm.name] = float(epoch.lengths[epoch.plan.samples].sum() / loads.max(axis=1).sum())
    return found


def _notes(request: LearningRequest, trials: Mapping[str, Mapping[int, LearningTrial]]) -> list[str]:
    notes = []
    least = least_pairs(LEVEL)
    if request.seeds < least:
        notes.append(
            f"{request.seeds} seeds: loss_spikes, time_to_loss and forgetting are judged from {least} on "
            f"(--seeds {least})"
        )
    steps = {len(one.windows) for by_seed in trials.values() for one in list(by_seed.values())[:1]}
    if len(steps) > 1:
        notes.append(
            "equal samples, real tokens and blocks, but not equal optimizer steps: a strategy with smaller "
            f"windows takes more of them ({min(steps)} to {max(steps)})"
        )
    notes.append("runs of this length do not spike as long ones do: no spike here says nothing of those")
    return notes
