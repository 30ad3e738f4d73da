"""`dflash train`: epochs with a fresh plan each, metrics and checkpoints on disk, the drafter at the end."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import IO

import torch

from dflash.command_line import say
from dflash.config import Config
from dflash.data.sources import open_store, target_folder
from dflash.data.store import TokenStore
from dflash.errors import DflashError, ExitCode
from dflash.models.identity import identify
from dflash.models.published_config import serving_facts
from dflash.models.starting_point import drafter_shape
from dflash.training import resuming, run_folder
from dflash.training.checkpoint import checkpoints
from dflash.training.inspection import inspected_staff
from dflash.training.interrupts import Stop, graceful_stop
from dflash.training.manifest import manifest
from dflash.training.models import Staff
from dflash.training.placement import place
from dflash.training.plans import RunPlans, plan_run
from dflash.training.preflight import WorstMicroBatches
from dflash.training.progress import Progress
from dflash.training.resuming import Resumption
from dflash.training.run import training_run
from dflash.training.schedule import held_out_micro_batches, in_training_order
from dflash.training.step import EvaluationResult, SaveResult, Saving, WindowResult


def train_drafter(config: Config, out: Path | None = None, resume: Resumption | None = None) -> int:
    """Train as the settings say, or go on with a run, and return the exit code.

    Every epoch's plan is made and certified before the first window, so a strategy that fails in the
    third epoch is refused at the start and not hours later.

    Raises:
        UsageError: bad settings, ``out`` already holds a run, or ``resume`` is of another one.
        StageError: a stage failed; the last checkpoint is whole.
    """
    torch.set_num_threads(1)
    store = open_store(config.data, say)
    placement, worst = place(config.pipeline), WorstMicroBatches(store, config)
    plans = plan_run(config, store, worst.add)
    target = target_folder(config.data)
    facts, shape = serving_facts(target), drafter_shape(config, target)
    staff, inspection = inspected_staff(config, store, worst, placement)
    identity = identify(target, inspection.perplexity)
    made_by = identity.config_hash[:32] + identity.weight_hash[:32]
    origin = resuming.origin(config, store.fingerprint, plans.digests, made_by)
    if resume is None:
        folder = run_folder.new_folder(out)
    else:
        folder = resume.folder
        say(resuming.check(resume, origin, config.pipeline.drafters))
    say(inspection.preflight)
    told = {"fingerprint": store.fingerprint, "plan_digests": plans.digests, "windows": plans.windows}
    run_folder.write_settings(folder, config, manifest(config, placement, **told), asdict(identity))
    saving = Saving(folder, config.training.keep_checkpoints, origin)
    first = 0 if resume is None else resume.header.windows
    with (
        run_folder.open_metrics(folder, first) as metrics,
        Progress(plans.total, plans.arm.name, store, folder, first) as progress,
        graceful_stop(say) as stop,
    ):
        try:
            _train(config, store, staff, plans, saving, resume, metrics, progress, stop)
        except DflashError as error:
            raise _with_way_on(error, folder) from error.__cause__
        except KeyboardInterrupt:
            stop.asked = True
        drafter = run_folder.write_last_drafter(folder, shape, facts)
        if stop.asked:
            progress.interrupted(drafter)
            return ExitCode.INTERRUPTED
        progress.finished()
    return ExitCode.OK


def _train(
    config: Config,
    store: TokenStore,
    staff: Staff,
    plans: RunPlans,
    saving: Saving,
    resume: Resumption | None,
    metrics: IO[str],
    progress: Progress,
    stop: Stop,
) -> None:
    total, first = plans.total, 0 if resume is None else resume.header.windows
    work = in_training_order(
        plans.training_windows(first),
        held_out_micro_batches(store, config),
        [0, *range(config.training.evaluate_every, total, config.training.evaluate_every), total],
        drafters=config.pipeline.drafters,
        save_after=[*range(config.training.checkpoint_every, total, config.training.checkpoint_every), total],
        first=first,
        stop=lambda: stop.asked,
    )
    checkpoint = None if resume is None else resume.checkpoint
    with training_run(config, store, staff, work, total, saving=saving, resume=checkpoint) as run:
        for result in run.results:
            telemetry = run.telemetry()
            if isinstance(result, SaveResult):
                progress.saved(result)
                continue
            if isinstance(result, WindowResult):
                progress.window(result, telemetry)
            elif isinstance(result, EvaluationResult):
                progress.evaluation(result)
            metrics.write(run_folder.metrics_line(result, telemetry.bottleneck))
            metrics.flush()


def _with_way_on(error: DflashError, folder: Path) -> DflashError:
    """Tell where the run can be taken up again."""
    if checkpoints(folder):
        again = type(error)(f"{error}; what was trained is safe, go on with: dflash train --resume {folder}")
        again.exit_code = error.exit_code
        for note in getattr(error, "__notes__", ()):
            again.add_note(note)
        return again
    return error
