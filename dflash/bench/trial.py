"""One trial: a strategy trained for a few windows, measured from commit to commit."""

from __future__ import annotations

import math
import resource
import statistics
import time
from dataclasses import dataclass, field

from dflash.batching.composition import measure_composition
from dflash.bench.exchange import Measurement, TrialRequest
from dflash.bench.machine import read_load
from dflash.bench.window_set import representative_windows
from dflash.data.sources import open_store
from dflash.errors import TrialError
from dflash.pipeline import Telemetry
from dflash.pipeline.work import Counts
from dflash.plugin_manager import PluginManager
from dflash.training.run import TrainingRun, load_models, training_run
from dflash.training.schedule import EpochPlan, held_out_micro_batches, in_training_order, plan_epoch
from dflash.training.step import WindowResult


@dataclass
class _Clock:
    """What is read when a window's commit reaches the caller."""

    telemetry: Telemetry
    cpu: float = field(default_factory=time.process_time)


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
    epoch = plan_epoch(arm.strategy, arm.name, store, config, epoch=0)
    cycle = representative_windows(epoch, request.windows)
    cooldown = -(-config.pipeline.depth // config.batching.accumulation)
    total = request.warmup + request.windows + cooldown
    order = [cycle[(number - request.warmup) % len(cycle)] for number in range(total)]
    work = in_training_order(
        (epoch.window(window) for window in order), held_out_micro_batches(store, config), [total]
    )
    models = load_models(config, store)
    before = read_load()
    with training_run(config, store, models, work, total, diversity=True) as run:
        seen = _follow(run, request)
    return _measurement(epoch, request, seen, read_load().since(before).steal_seconds, before.load)


@dataclass
class _Seen:
    results: list[WindowResult] = field(default_factory=list)
    start: _Clock | None = None
    end: _Clock | None = None
    held_out_loss: float | None = None


def _follow(run: TrainingRun, request: TrialRequest) -> _Seen:
    seen = _Seen()
    for result in run.results:
        if not isinstance(result, WindowResult):
            seen.held_out_loss = result.loss
            continue
        seen.results.append(result)
        if result.window == request.warmup - 1:
            seen.start = _Clock(run.telemetry())
        elif result.window == request.warmup + request.windows - 1:
            seen.end = _Clock(run.telemetry())
    return seen


def _measurement(
    epoch: EpochPlan, request: TrialRequest, seen: _Seen, steal_seconds: float | None, load: float | None
) -> Measurement:
    if seen.start is None or seen.end is None:
        raise TrialError(f"only {len(seen.results)} windows were committed")
    last_warmup = seen.results[request.warmup - 1]
    measured = seen.results[request.warmup : request.warmup + request.windows]
    seconds = measured[-1].committed_at - last_warmup.committed_at
    counts = sum((window.counts for window in measured), start=Counts())
    interval = seen.end.telemetry - seen.start.telemetry
    diversities = [w.gradient_diversity for w in measured if w.gradient_diversity is not None]
    block = request.config.drafter.block_size
    return Measurement(
        metrics={
            "tok_s": counts.real_tokens / seconds,
            "padded_tok_s": counts.padded_tokens / seconds,
            "loss_tok_s": counts.loss_tokens / seconds,
            **_composition(epoch),
            "anchor_slot_efficiency": _share(counts.loss_tokens, counts.anchor_slots * (block - 1)),
            "label_coverage": _share(counts.covered_tokens, counts.supervised_tokens),
            "final_loss": seen.held_out_loss,
            "gradient_diversity": statistics.fmean(diversities) if diversities else None,
            "target_utilisation": _busy(interval, "target"),
            "drafter_utilisation": _busy(interval, "drafter"),
            "window_seconds": seconds / len(measured),
            "cpu_seconds": seen.end.cpu - seen.start.cpu,
            "peak_memory_bytes": float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024),
        },
        losses=[window.loss for window in measured],
        plan_digest=epoch.plan.digest(),
        windows_per_epoch=epoch.plan.windows,
        stages=_shares(interval),
        bottleneck=interval.bottleneck,
        steal_seconds=steal_seconds,
        load=load,
    )


def _composition(epoch: EpochPlan) -> dict[str, float | None]:
    """Measures of the whole epoch's plan; None where this plan does not define one."""
    measures = measure_composition(epoch.plan, epoch.lengths, epoch.request).metrics
    return {name: None if math.isnan(value) else value for name, value in measures.items()}


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _busy(interval: Telemetry, kind: str) -> float:
    """Mean busy share of the workers of a kind; a difference of floats may say a hair more than one."""
    return statistics.fmean(
        min(1.0, stage.busy / stage.wall) for stage in interval.stages if stage.name.startswith(f"{kind}-")
    )


def _shares(interval: Telemetry) -> dict[str, dict[str, float]]:
    return {
        stage.name: {
            activity: getattr(stage, activity) / stage.wall
            for activity in ("busy", "starved", "blocked", "copy", "barrier")
        }
        for stage in interval.stages
        if stage.wall
    }
