"""One run of the pipeline: targets, drafters, stages and channels put together."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dflash.config import Config
from dflash.data.atomic import remove_leftovers
from dflash.data.sources import target_folder
from dflash.data.store import TokenStore
from dflash.memory import keep_freed_memory
from dflash.models.shape import read_json
from dflash.models.starting_point import drafter_shape
from dflash.pipeline import Receiver, Sender, Telemetry, open_engine
from dflash.pipeline.engine import Pipeline
from dflash.pipeline.stages import Others, feed, prefetch, run_drafter, run_target
from dflash.pipeline.work import Work
from dflash.training.checkpoint import FOLDER, read_checkpoint
from dflash.training.group import Alone, ChannelGroup, DistributedGroup, Group
from dflash.training.models import Staff, Trainee
from dflash.training.placement import place
from dflash.training.step import DrafterStep, Result, Saving


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
    staff: Staff,
    work: Iterable[Work],
    total_windows: int,
    *,
    diversity: bool = False,
    saving: Saving | None = None,
    resume: Path | None = None,
) -> Iterator[TrainingRun]:
    """Start the stages over ``work``; leaving the block ends all of them.

    Args:
        staff: where the workers get their models; from this process unless the engine has processes.
        total_windows: length of the learning-rate schedule.
        diversity: whether to measure the gradient diversity of each window.
        saving: where checkpoints go; None writes none.
        resume: a checkpoint that the drafters start from.

    Raises:
        StageError: from ``results``, when a stage fails; its cause is the first failure.
    """
    settings, placement = config.pipeline, place(config.pipeline)
    ranks = range(settings.drafters)
    with (
        _without_leftovers(saving),
        open_engine(
            placement.engine,
            on_thread_start=prepare_worker,
            stall_after=settings.watchdog_seconds,
            preload=modules_of_workers(config),
        ) as pipeline,
    ):
        reserved = [pipeline.channel(f"slots-{rank}", items=settings.slots) for rank in ranks]
        work_tx, work_rx = pipeline.channel("work", items=2 * settings.prefetch)
        batches_tx, batches_rx = pipeline.channel("batches", items=2 * settings.targets)
        features = [pipeline.channel(f"features-{rank}", items=settings.slots) for rank in ranks]
        results_tx, results_rx = pipeline.channel("results", items=8)
        slots = [pipeline.slots(settings.slots, nbytes=_slot_bytes(config)) for _ in ranks]
        rendezvous = _Rendezvous(settings.drafters) if pipeline.has_processes else None
        others = [None] * settings.drafters if rendezvous else _introduce(pipeline, settings.drafters)

        pipeline.start("feed", feed, work, [sender for sender, _ in reserved], work_tx)
        seed = config.training.seed
        for number in range(settings.prefetch):
            ends = work_rx.clone(), batches_tx.clone()
            pipeline.start(f"prefetch-{number}", prefetch, *ends, store, config.drafter, seed)
        for number in range(settings.targets):
            outboxes = [sender.clone() for sender, _ in features]
            load = staff.target_of(number)
            pipeline.start_apart(f"target-{number}", run_target, batches_rx.clone(), outboxes, slots, load)
        for rank in ranks:
            load_step = StepLoader(
                config=config,
                rank=rank,
                load_drafter=staff.drafter_of(rank),
                port=rendezvous.port if rendezvous else None,
                total_windows=total_windows,
                diversity=diversity,
                saving=saving,
                resume=resume,
            )
            pipeline.start_apart(
                f"drafter-{rank}",
                run_drafter,
                features[rank][1],
                reserved[rank][1],
                results_tx.clone(),
                others[rank],
                slots[rank],
                load_step,
            )
        for end in (work_rx, batches_tx, batches_rx, results_tx, *(sender for sender, _ in features)):
            end.close()
        yield TrainingRun(pipeline, pipeline.results(results_rx))


@contextmanager
def _without_leftovers(saving: Saving | None) -> Iterator[None]:
    """A drafter that was killed in the middle of a checkpoint cannot clean up after itself."""
    try:
        yield
    finally:
        if saving is not None:
            remove_leftovers(saving.folder / FOLDER)


@dataclass(frozen=True)
class StepLoader:
    """What a drafter's worker calls to begin. Plain values, where that worker has a process of its own."""

    config: Config
    rank: int
    load_drafter: Callable[[], Trainee]
    port: int | None
    total_windows: int
    diversity: bool
    saving: Saving | None
    resume: Path | None

    def __call__(self, others: Others) -> DrafterStep:
        drafter, head = self.load_drafter()
        step = DrafterStep(
            drafter,
            head,
            self.config,
            self.total_windows,
            diversity=self.diversity,
            group=self._group(others, head.head_VH.device),
            saving=self.saving,
        )
        if self.resume is not None:
            step.restore(read_checkpoint(self.resume))
        return step

    def _group(self, others: Others, device: torch.device) -> Group:
        size = self.config.pipeline.drafters
        if size == 1:
            return Alone()
        if others is not None:
            return ChannelGroup(self.rank, size, *others)
        assert self.port is not None
        return DistributedGroup(self.rank, size, self.port, device)


class _Rendezvous:
    """A store on this host through which the processes of several drafters find each other."""

    def __init__(self, drafters: int) -> None:
        self.port: int | None = None
        if drafters > 1:
            from torch.distributed import TCPStore  # type: ignore[attr-defined]

            # By itself it would listen on every network that the machine is in.
            listener = socket.create_server(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
            self._store: Any = TCPStore(
                "127.0.0.1",
                self.port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )


def _introduce(pipeline: Pipeline, drafters: int) -> list[Others]:
    """Channels from every drafter to every other one."""
    if drafters == 1:
        return [None]
    ends: list[tuple[Sender[Any], Receiver[Any]]] = [
        pipeline.channel(f"gradients-{rank}", items=drafters) for rank in range(drafters)
    ]
    met: list[Others] = [
        (inbox, [sender.clone() for other, (sender, _) in enumerate(ends) if other != rank])
        for rank, (_, inbox) in enumerate(ends)
    ]
    for sender, _ in ends:
        sender.close()
    return met


def _slot_bytes(config: Config) -> int:
    """The most bytes that the features of one micro-batch can take: real tokens never exceed the budget."""
    shape = drafter_shape(config, target_folder(config.data))
    itemsize: int = getattr(torch, config.data.target_dtype).itemsize
    return config.batching.token_budget * len(shape.target_layer_ids) * shape.hidden_size * itemsize


def modules_of_workers(config: Config) -> tuple[str, ...]:
    """What a worker would otherwise spend its first seconds on."""
    kind = read_json(target_folder(config.data) / "config.json").get("model_type", "auto")
    return ("dflash.training.run", f"transformers.models.{kind}.modeling_{kind}")


def prepare_worker() -> None:
    """The first thing in every worker: a new thread's products would otherwise use all cores."""
    torch.set_num_threads(1)
    keep_freed_memory()
