"""`dflash train`: epochs with a fresh plan each, metrics on disk, the drafter's weights at the end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import IO

import torch

from dflash.command_line import say
from dflash.config import Config, dump_config
from dflash.data.sources import open_store, target_folder
from dflash.data.store import TokenStore
from dflash.errors import ExitCode, UsageError
from dflash.models.export import write_drafter
from dflash.models.identity import identify
from dflash.models.published_config import serving_facts
from dflash.plugin_manager import Arm, PluginManager
from dflash.training.preflight import WorstMicroBatches, try_worst
from dflash.training.progress import Progress
from dflash.training.run import Models, load_models, training_run
from dflash.training.schedule import (
    Window,
    held_out_micro_batches,
    in_training_order,
    plan_epoch,
)
from dflash.training.step import WindowResult


def train_drafter(config: Config, out: Path | None = None) -> int:
    """Train as the settings say and return the exit code.

    Every epoch's plan is made and certified before the first window, so a strategy that fails in the
    third epoch is refused at the start and not hours later.

    Raises:
        UsageError: bad settings, or ``out`` already holds a run.
        StageError: a stage failed; what was measured until then is on disk.
    """
    torch.set_num_threads(1)
    arm = _single_arm(config)
    store = open_store(config.data, say)
    worst = WorstMicroBatches(store, config)
    total = _total_windows(config, arm, store, worst)
    models = load_models(config, store)
    preflight = try_worst(models, store, config, worst)
    facts = serving_facts(target_folder(config.data))
    folder = _new_folder(out)
    say(preflight)
    (folder / "config.toml").write_text(dump_config(config))
    identity = identify(target_folder(config.data), models.perplexity)
    (folder / "target.json").write_text(json.dumps(asdict(identity), indent=2) + "\n")
    with (
        (folder / "metrics.jsonl").open("w") as metrics,
        Progress(total, arm.name, store, folder) as progress,
    ):
        try:
            _train(config, arm, store, models, total, metrics, progress)
        except KeyboardInterrupt:
            progress.interrupted()
            write_drafter(folder / "drafter", models.drafter, facts)
            return ExitCode.INTERRUPTED
        write_drafter(folder / "drafter", models.drafter, facts)
        progress.finished()
    return ExitCode.OK


def _train(
    config: Config,
    arm: Arm,
    store: TokenStore,
    models: Models,
    total: int,
    metrics: IO[str],
    progress: Progress,
) -> None:
    every = config.training.evaluate_every
    work = in_training_order(
        _windows(config, arm, store, total),
        held_out_micro_batches(store, config),
        [0, *range(every, total, every), total],
    )
    with training_run(config, store, models, work, total) as run:
        for result in run.results:
            telemetry = run.telemetry()
            if isinstance(result, WindowResult):
                progress.window(result, telemetry)
            else:
                progress.evaluation(result)
            kind = "window" if isinstance(result, WindowResult) else "evaluation"
            line = {"type": kind, **asdict(result), "bottleneck": telemetry.bottleneck}
            metrics.write(json.dumps(line, allow_nan=False) + "\n")
            metrics.flush()


def _windows(config: Config, arm: Arm, store: TokenStore, total: int) -> Iterator[Window]:
    left = total
    for epoch in range(config.training.epochs):
        plan = plan_epoch(arm.strategy, arm.name, store, config, epoch)
        for window in range(min(left, plan.plan.windows)):
            yield plan.window(window)
        left -= min(left, plan.plan.windows)


def _total_windows(config: Config, arm: Arm, store: TokenStore, worst: WorstMicroBatches) -> int:
    """Of all epochs; ``worst`` is shown each of their plans."""
    limit, planned = config.training.windows, 0
    for epoch in range(config.training.epochs):
        plan = plan_epoch(arm.strategy, arm.name, store, config, epoch)
        windows = plan.plan.windows if limit is None else min(plan.plan.windows, limit - planned)
        worst.add(plan, windows)
        planned += windows
        if planned == limit:
            break
    return planned


def _single_arm(config: Config) -> Arm:
    arms = PluginManager().arms(config.batching.strategy)
    if len(arms) != 1:
        raise UsageError(
            f"batching.strategy={config.batching.strategy!r} names {len(arms)} strategies, not one"
        )
    return arms[0]


def _new_folder(out: Path | None) -> Path:
    folder = out or Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S")
    if (folder / "metrics.jsonl").exists():
        raise UsageError(f"{folder} already holds a run: give another folder with --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {folder}: {error.strerror}") from error
    return folder
