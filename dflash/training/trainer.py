"""`dflash train`: epochs with a fresh plan each, metrics and checkpoints on disk, the drafter at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

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
from dflash.training.checkpoint import checkpoints, prune
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
from dflash.training.run_folder import Metrics
from dflash.training.schedule import held_out_micro_batches, in_training_order
from dflash.training.step import SaveResult, Saving
from dflash.training.watch import NOBODY, Audience, Watch


def train_drafter(
    config: Config,
    out: Path | None = None,
    resume: Resumption | None = None,
    audience: Audience = NOBODY,
    alter: Callable[[Staff, TokenStore], tuple[Staff, TokenStore]] | None = None,
) -> int:
    """Train as the settings say, or go on with a run, and return the exit code.

    Every epoch's plan is made and certified before the first window, so a strategy that fails in the
    third epoch is refused at the start and not hours later. ``alter`` is for drills: it puts something else
    into the workers' hands after everything has been looked at.

    Raises:
        UsageError: bad settings, ``out`` already holds a run, or ``resume`` is of another one.
        StageError: a stage failed; the last checkpoint is whole.
    """
    torch.set_num_threads(1)
    config = run_folder.with_absolute_paths(config)
    store = open_store(config.data, say)
    placement, worst = place(config.pipeline), WorstMicroBatches(store, config)
    plans = plan_run(config, store, worst.add)
    target = target_folder(config.data)
    facts, shape = serving_facts(target), drafter_shape(config, target)
    staff, inspection = inspected_staff(config, store, worst, placement)
    if alter is not None:
        staff, store = alter(staff, store)
    identity = identify(target, inspection.perplexity)
    origin = resuming.origin(config, store, plans, identity)
    if resume is None:
        begin = Resumption(run_folder.new_folder(out))
    else:
        begin = resume
        say(resuming.check(begin, origin))
    folder, first = begin.folder, begin.windows
    say(inspection.preflight)
    told = {"fingerprint": store.fingerprint, "plan_digests": plans.digests, "windows": plans.windows}
    facts_of_run = manifest(config, placement, run_folder.starts(folder), first, **told)
    with (
        run_folder.taken(folder, first, begin.results) as metrics,
        Watch(
            audience,
            Progress(plans.total, plans.arm.name, store, folder, first),
            folder=folder,
            windows=plans.total,
            first=first,
            manifest=facts_of_run,
        ) as watch,
        graceful_stop(say) as stop,
    ):
        run_folder.write_settings(folder, config, facts_of_run, asdict(identity))
        try:
            _train(config, store, staff, plans, Saving(folder, origin), begin, metrics, watch, stop)
            interrupted = plans.total not in checkpoints(folder)
        except DflashError as error:
            raise _with_way_on(error, folder) from error.__cause__
        except KeyboardInterrupt:
            interrupted = True
        drafter = run_folder.write_last_drafter(folder, shape, facts)
        if interrupted:
            watch.interrupted(drafter)
            return ExitCode.INTERRUPTED
        watch.finished()
    return ExitCode.OK


def _train(
    config: Config,
    store: TokenStore,
    staff: Staff,
    plans: RunPlans,
    saving: Saving,
    begin: Resumption,
    metrics: Metrics,
    watch: Watch,
    stop: Stop,
) -> None:
    settings, total, first = config.training, plans.total, begin.windows
    evaluate_after = [0, *range(settings.evaluate_every, total, settings.evaluate_every), total]
    work = in_training_order(
        plans.training_windows(first),
        held_out_micro_batches(store, config),
        # A checkpoint has the evaluation at its place behind it.
        [windows for windows in evaluate_after if begin.checkpoint is None or windows > first],
        drafters=config.pipeline.drafters,
        save_after=[*range(settings.checkpoint_every, total, settings.checkpoint_every), total],
        first=first,
        stop=lambda: stop.asked,
    )
    with training_run(config, store, staff, work, total, saving=saving, resume=begin.checkpoint) as run:
        watch.begins(run.telemetry)
        for result in run.results:
            if isinstance(result, SaveResult):
                # Not before all that came before that checkpoint stands in the metrics.
                prune(saving.folder, settings.keep_checkpoints, result.window)
            else:
                metrics.add(result, run.telemetry().bottleneck)
            watch.result(result)
    prune(saving.folder, settings.keep_checkpoints, total)


def _with_way_on(error: DflashError, folder: Path) -> DflashError:
    """Tell where the run can be taken up again."""
    if checkpoints(folder):
        again = type(error)(f"{error}; what was trained is safe, go on with: dflash train --resume {folder}")
        again.exit_code = error.exit_code
        for note in getattr(error, "__notes__", ()):
            again.add_note(note)
        return again
    return error
