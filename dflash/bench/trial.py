"""One trial: a strategy trained for a few windows, measured from commit to commit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from dflash.bench import machine, trial_figures
from dflash.bench.clock import window_clock
from dflash.bench.exchange import Measurement, TrialRequest
from dflash.bench.flops import Sizes, window_drafter_flops, window_target_flops
from dflash.bench.injection import slowed, worsened
from dflash.bench.steady_state import unsteady
from dflash.bench.throttling import throttle_reasons
from dflash.bench.trial_figures import Measured, Reading
from dflash.bench.window_set import representative_windows
from dflash.data.sources import open_store
from dflash.data.store import TokenStore
from dflash.errors import TrialError, UsageError
from dflash.plugin_manager import PluginManager
from dflash.training.models import staff_for
from dflash.training.placement import place
from dflash.training.run import TrainingRun, training_run
from dflash.training.schedule import (
    EpochPlan,
    Window,
    held_out_micro_batches,
    in_training_order,
    plan_epoch,
)
from dflash.training.step import EvaluationResult, WindowResult


def measure_trial(request: TrialRequest) -> Measurement:
    """Plan, certify, train and measure. Needs a process of its own, with torch on one thread.

    The windows are a fixed set that is repeated in a cycle: first its last ones as warm-up, then all of it
    on the clock, then some more, so that the last measured window meets the same load as the first.

    Raises:
        PlanError: the strategy fails or its plan is wrong.
        TrialError: the trial's numbers would mean nothing.
        StageError: a stage of the pipeline failed.
    """
    config = request.config
    arm = PluginManager(blocked=request.blocked).arms(request.strategy)[0]
    store = open_store(config.data)
    drafters = config.pipeline.drafters
    strategy = worsened(arm.strategy, request.inject)
    epoch = plan_epoch(strategy, arm.name, store, config, epoch=0, drafters=drafters)
    windows = [epoch.window(window) for window in _order(epoch, request)]
    held_out = held_out_micro_batches(store, config)
    work = in_training_order(windows, held_out, [len(windows)], drafters=drafters)
    staff, placement = staff_for(config, store), place(config.pipeline)
    load = machine.read_load().load
    with (
        slowed(request.inject),
        window_clock(placement) as clock,
        training_run(config, store, staff, work, len(windows), diversity=True) as run,
    ):
        seen = _follow(run, request)
    seconds = clock.seconds_between(seen.results)
    return _measurement(epoch, windows, request, store, seen, seconds, load)


def _order(epoch: EpochPlan, request: TrialRequest) -> list[int]:
    cycle = representative_windows(epoch, request.windows)
    settings = request.config
    cooldown = -(-settings.pipeline.depth // settings.batching.accumulation)
    total = request.warmup + request.windows + cooldown
    return [cycle[(number - request.warmup) % len(cycle)] for number in range(total)]


@dataclass
class _Seen:
    results: list[WindowResult] = field(default_factory=list)
    start: Reading | None = None
    end: Reading | None = None
    held_out_loss: float | None = None
    throttled: list[str] = field(default_factory=list)


def _follow(run: TrainingRun, request: TrialRequest) -> _Seen:
    seen = _Seen()
    for result in run.results:
        if isinstance(result, EvaluationResult):
            seen.held_out_loss = result.loss
        if not isinstance(result, WindowResult):
            continue
        seen.results.append(result)
        if result.window == request.warmup - 1:
            seen.start = _read(run)
        elif result.window == request.warmup + request.windows - 1:
            seen.end = _read(run)
            if torch.cuda.is_available():
                # Off the clock, but while the GPUs are still at work.
                seen.throttled = throttle_reasons()
    return seen


def _read(run: TrainingRun) -> Reading:
    return Reading(run.telemetry(), time.process_time(), machine.read_load())


def _measurement(
    epoch: EpochPlan,
    windows: Sequence[Window],
    request: TrialRequest,
    store: TokenStore,
    seen: _Seen,
    seconds: Sequence[float],
    load: float | None,
) -> Measurement:
    if seen.start is None or seen.end is None:
        raise TrialError(f"only {len(seen.results)} windows were committed")
    config, sizes = request.config, Sizes.of(request.config)
    warmup, end = request.warmup, request.warmup + request.windows
    # Number k of the seconds is window k + 1, for nothing was committed before the first.
    measured = Measured(
        seen.results[warmup:end], seconds[warmup - 1 : end - 1], seen.start, seen.end, seen.held_out_loss
    )
    of_drafter = [window_drafter_flops(window, store, config, sizes) for window in windows[:end]]
    of_target = [window_target_flops(window, sizes) or 0 for window in windows[:end]]
    work = [drafter + target for drafter, target in zip(of_drafter, of_target, strict=True)]
    # A time for each operation, because the windows of a set differ in work by intent.
    paces = [spent / done for spent, done in zip(seconds[: end - 1], work[1:], strict=True) if done]
    unsteadiness = unsteady(paces, warmup - 1) if len(paces) == end - 1 else None
    of_the_clock = trial_figures.of_the_clock(measured)
    predicted, drift = _predicted(epoch, request, of_the_clock["tok_s"])
    return Measurement(
        metrics={
            **of_the_clock,
            "predicted_tok_s": predicted,
            **trial_figures.of_the_plan(epoch, sizes),
            **trial_figures.of_the_work(measured, config.drafter.block_size, sum(of_drafter[warmup:])),
            **trial_figures.of_the_memory(),
        },
        losses=[window.loss for window in measured.results],
        plan_digest=epoch.plan.digest(),
        windows_per_epoch=epoch.plan.windows,
        stages=trial_figures.stage_shares(measured.telemetry),
        bottleneck=measured.telemetry.bottleneck,
        steal_seconds=measured.steal.steal_seconds,
        load=load,
        windows=trial_figures.window_figures(measured),
        steal_share=trial_figures.steal_share(measured),
        throttled=seen.throttled,
        notes=[note for note in (unsteadiness, drift) if note],
        machine=machine.describe(),
    )


def _predicted(
    epoch: EpochPlan, request: TrialRequest, tok_s: float | None
) -> tuple[float | None, str | None]:
    """What the profile of this machine foretells of the rate, and a note where that is far off.

    None where this machine was never calibrated, or for models that it was not calibrated with.
    """
    from dflash.simulation.foretell import foretell
    from dflash.simulation.profile import THIS_MACHINE, load_profile

    try:
        profile = load_profile(THIS_MACHINE)
        foretold = foretell(
            request.config, epoch, profile, _order(epoch, request), request.warmup, request.windows
        )
    except UsageError:
        return None, None
    if tok_s is None or foretold.drift(tok_s) is None:
        return foretold.tok_s, None
    return foretold.tok_s, "the rate is beyond the error that the prediction states; calibrate anew"
