"""The worst micro-batches of a run, tried for real before its first window.

A run that would end in its third hour, where the longest samples meet, ends before it has begun.
"""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dflash.config import Config
from dflash.data.store import TokenStore
from dflash.errors import UsageError
from dflash.models.features import FeatureBatch
from dflash.pipeline.stages import load, read_features
from dflash.pipeline.work import LoadedBatch, TargetOutput, Work
from dflash.training.models import Models
from dflash.training.schedule import EpochPlan
from dflash.training.step import DrafterStep

Stage = Literal["target", "drafter"]

_NOTHING_BAD = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class _Found:
    size: tuple[int, int]
    """compared; the largest is kept"""
    work: Work


class WorstMicroBatches:
    """The dearest micro-batches of a run in memory, gathered plan by plan, so that no plan has to be kept.

    The target's memory grows with padded tokens, and with tokens times the longest row where attention has a
    mask. The drafter's grows with the blocks of a chunk, and with those blocks times the longest row.
    """

    def __init__(self, store: TokenStore, config: Config) -> None:
        settings = config.drafter
        self._blocks = np.minimum(settings.max_anchors, -(-store.valid_anchors // settings.anchor_stride))
        self._chunk = settings.anchor_budget // settings.block_size
        self._worst: dict[tuple[Stage, str], _Found] = {}

    def add(self, epoch: EpochPlan, windows: int) -> None:
        """Look at the first ``windows`` windows of an epoch's plan."""
        plan = epoch.plan
        offsets = plan.batch_offsets[: plan.window_offsets[windows] + 1]
        batches = np.flatnonzero(np.diff(offsets))
        if not len(batches):
            return
        samples, starts = plan.samples[: offsets[-1]], offsets[batches]
        lengths = epoch.lengths[samples]
        longest = np.maximum.reduceat(lengths, starts)
        packed = plan.layout == "packed"
        tokens = np.add.reduceat(lengths, starts) if packed else np.diff(offsets)[batches] * longest
        blocks = np.minimum(np.add.reduceat(self._blocks[plan.ids[samples]], starts), self._chunk)
        self._keep("target", "tokens", tokens, longest, batches, epoch)
        self._keep("target", "attention", tokens * longest, longest, batches, epoch)
        self._keep("drafter", "blocks", blocks, longest, batches, epoch)
        self._keep("drafter", "attention", blocks * longest, longest, batches, epoch)

    def _keep(
        self,
        stage: Stage,
        what: str,
        size: NDArray[np.int64],
        longest: NDArray[np.int64],
        batches: NDArray[np.int64],
        epoch: EpochPlan,
    ) -> None:
        best = np.lexsort((longest, size))[-1]
        found, known = (int(size[best]), int(longest[best])), self._worst.get((stage, what))
        if known is not None and known.size >= found:
            return
        plan, batch = epoch.plan, int(batches[best])
        samples = plan.batch(batch)
        window = int(np.searchsorted(plan.window_offsets, batch, side="right")) - 1
        place = epoch.request.epoch, window, plan.layout
        work = Work(0, "train", *place, False, plan.ids[samples], epoch.lengths[samples])
        self._worst[stage, what] = _Found(found, work)

    def works(self, stage: Stage) -> list[Work]:
        """The micro-batches that a stage has to try, each once."""
        found = [found.work for (of, _), found in self._worst.items() if of == stage]
        return list({work.rows_D.tobytes(): work for work in found}.values())


def try_worst(models: Models, store: TokenStore, config: Config, worst: WorstMicroBatches) -> str:
    """Run the worst micro-batches through target and drafter, and forget all of it.

    Weights, optimizer, generators and results stay as if it had never been. Beside the drafter's part, room
    is set aside for what a run holds at the same time: the optimizer's two moments, the features of
    ``pipeline.depth`` micro-batches and, on a GPU, what the targets took.

    Returns:
        A line for a person: peak memory and seconds.

    Raises:
        UsageError: memory does not suffice. Names the micro-batch, what was asked for and the ways out.
    """
    start = perf_counter()
    target, seed, device = models.targets[0], config.training.seed, models.targets[0].device
    like, in_flight = torch.zeros(0, 0), 0
    before = _begin_peak(device)
    for work in worst.works("target"):
        loaded = load(work, store, config.drafter, seed)
        with _out_of_memory_is_one_line("target", loaded, config):
            features = read_features(loaded, target).features
        like, in_flight = features.features_TF[:0], max(in_flight, config.pipeline.slots * features.nbytes)
        del features
    weights = list(models.drafter.parameters())
    room = in_flight + 2 * sum(weight.numel() * weight.element_size() for weight in weights)
    room += len(models.targets) * (_peak(device) - before) if device.type == "cuda" else 0
    # The window is never closed, so no optimizer step is taken.
    step = DrafterStep(models.drafter, models.head, config, total_windows=1, diversity=False)
    try:
        for work in worst.works("drafter"):
            loaded = load(work, store, config.drafter, seed)
            with _out_of_memory_is_one_line("drafter", loaded, config):
                held = torch.empty(room, dtype=torch.uint8, device=device)
                step.add(_blank_features(loaded, like))
                del held
    finally:
        models.drafter.zero_grad(set_to_none=True)
    return f"memory preflight: peak {_peak(device) / 1e9:.2f} GB, {perf_counter() - start:.1f} s"


def _blank_features(loaded: LoadedBatch, like_0F: Tensor) -> TargetOutput:
    """What the target would give, as far as memory is concerned."""
    offsets_D = np.concatenate([[0], np.cumsum(loaded.batch.lengths)]).astype(np.int64)
    features_TF = like_0F.new_zeros(int(offsets_D[-1]), like_0F.shape[1])
    batch = FeatureBatch(features_TF, offsets_D, loaded.batch.rows, loaded.slots)
    return TargetOutput(loaded.work, batch, loaded.counts, _NOTHING_BAD)


def _begin_peak(device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    return _peak(device)


def _peak(device: torch.device) -> int:
    """Bytes: of a GPU's allocator since :func:`_begin_peak`; on a CPU, of the process since it started."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextmanager
def _out_of_memory_is_one_line(stage: Stage, loaded: LoadedBatch, config: Config) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        asked = _asked_for(error)
        if asked is None:
            raise
        work, counts = loaded.work, loaded.counts
        ways = [f"batching.token_budget (now {config.batching.token_budget})"]
        if stage == "drafter":
            ways += [
                f"drafter.anchor_budget (now {config.drafter.anchor_budget})",
                f"pipeline.depth (now {config.pipeline.depth})",
            ]
        raise UsageError(
            f"memory does not suffice for the {stage} on a micro-batch of epoch {work.epoch}, window "
            f"{work.window}: {counts.samples} samples of at most {work.lengths_D.max()} tokens, "
            f"{counts.padded_tokens} padded tokens, {counts.anchor_slots} blocks, first store row "
            f"{work.rows_D[0]}; {asked} more were asked for; lower {' or '.join(ways)}"
        ) from error


def _asked_for(error: BaseException) -> str | None:
    """What an allocation asked for, in words; None for an error that is not about memory."""
    text = str(error)
    if not (isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in text):
        return None
    amount = re.search(r"(?:tried|Unable) to allocate ([\d.]+ \w+)", text, flags=re.IGNORECASE)
    return amount[1] if amount else "an unknown number of bytes"
