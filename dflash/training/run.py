"""One run of the pipeline: targets, drafter, stages and channels put together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from dflash.config import Config
from dflash.data.sources import target_folder
from dflash.data.store import TokenStore
from dflash.models.drafter import Drafter, TargetHead
from dflash.models.export import read_drafter
from dflash.models.identity import known_text, perplexity, refuse_untrained
from dflash.models.initialisation import initialise
from dflash.models.starting_point import drafter_shape
from dflash.models.target import Target, load_causal_lm, target_head
from dflash.pipeline import Telemetry, open_engine
from dflash.pipeline.engine import Pipeline
from dflash.pipeline.stages import feed, prefetch, run_drafter, run_target
from dflash.pipeline.work import Work
from dflash.training.step import DrafterStep, EvaluationResult, WindowResult

Result = WindowResult | EvaluationResult


@dataclass(frozen=True)
class Models:
    """Everything with weights: one target for each target worker, and the drafter."""

    targets: list[Target]
    head: TargetHead
    drafter: Drafter
    perplexity: float
    """of the target on the store's known text"""


def load_models(config: Config, store: TokenStore) -> Models:
    """Load the targets and a drafter: that of ``training.init``, or a fresh one.

    A fresh one's first weights depend on the seed and the target alone.

    Raises:
        UsageError: the target cannot be loaded, no drafter fits it, its attention does not run on this
            device, or the target predicts the store's samples no better than a guess.
    """
    folder, device = target_folder(config.data), config.pipeline.device
    shape = drafter_shape(config, folder)
    # Loading replaces parts of the library's global state, so it is done here and not in the workers.
    models = [load_causal_lm(folder, config.data.target_dtype) for _ in range(config.pipeline.targets)]
    if config.training.init is None:
        drafter = initialise(Drafter(shape), models[0], config.training.seed).to(device)
    else:
        drafter = read_drafter(Path(config.training.init), device)
    drafter.computing_as(config.drafter)
    models = [model.to(device) for model in models]
    head = target_head(models[0])
    # While the layers that no feature needs are still there.
    found = perplexity(models[0], known_text(store))
    if not config.data.allow_untrained_target:
        refuse_untrained(found, shape.vocab_size, folder, store)
    targets = [Target(model, shape.target_layer_ids, torch.device(device)) for model in models]
    return Models(targets, head, drafter, found)


@dataclass(frozen=True)
class TrainingRun:
    """A running pipeline. Iterate :meth:`results` to drive it."""

    pipeline: Pipeline
    results: Iterator[Result]

    def telemetry(self) -> Telemetry:
        """Where every stage's time went until now."""
        return self.pipeline.snapshot()


@contextmanager
def training_run(
    config: Config,
    store: TokenStore,
    models: Models,
    work: Iterable[Work],
    total_windows: int,
    *,
    diversity: bool = False,
) -> Iterator[TrainingRun]:
    """Start the stages over ``work``; leaving the block ends all of them.

    Args:
        total_windows: length of the learning-rate schedule.
        diversity: whether to measure the gradient diversity of each window.

    Raises:
        StageError: from ``results``, when a stage fails; its cause is the first failure.
    """
    settings = config.pipeline
    step = DrafterStep(models.drafter, models.head, config, total_windows, diversity=diversity)
    with open_engine(
        settings.engine, on_thread_start=single_thread, stall_after=settings.watchdog_seconds
    ) as pipeline:
        slots_tx, slots_rx = pipeline.channel("slots", items=settings.depth)
        work_tx, work_rx = pipeline.channel("work", items=2 * settings.prefetch)
        batches_tx, batches_rx = pipeline.channel("batches", items=2 * settings.targets)
        features_tx, features_rx = pipeline.channel("features", items=settings.depth)
        results_tx, results_rx = pipeline.channel("results", items=8)

        pipeline.start("feed", feed, work, slots_tx, work_tx)
        seed = config.training.seed
        for number in range(settings.prefetch):
            ends = work_rx.clone(), batches_tx.clone()
            pipeline.start(f"prefetch-{number}", prefetch, *ends, store, config.drafter, seed)
        for number, target in enumerate(models.targets):
            ends = batches_rx.clone(), features_tx.clone()
            pipeline.start(f"target-{number}", run_target, *ends, target)
        pipeline.start("drafter-0", run_drafter, features_rx, slots_rx, results_tx, step)
        for end in (work_rx, batches_tx, batches_rx, features_tx):
            end.close()
        yield TrainingRun(pipeline, pipeline.results(results_rx))


def single_thread() -> None:
    """The first thing in every worker: a new thread's products would otherwise use all cores."""
    torch.set_num_threads(1)
