"""The drafter's side of the pipeline: sums gradients over a window, commits it, evaluates between windows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from dflash.config import Config
from dflash.errors import NonFiniteError
from dflash.models.drafter import Drafter, TargetHead
from dflash.models.loss import block_loss
from dflash.pipeline.work import Counts, TargetOutput, Work
from dflash.training.checkpoint import (
    Checkpoint,
    CheckpointWriter,
    Header,
    Origin,
    path_of,
)
from dflash.training.gradients import MicroBatchGradients, diversity, mean_cosine
from dflash.training.group import Alone, Group
from dflash.training.micro_batch import LossSums, add_gradient, loss_only
from dflash.training.optimizer import Optimizer


@dataclass(frozen=True)
class WindowResult:
    """A committed window."""

    window: int
    epoch: int
    loss: float | None
    """sum of weighted losses / sum of weights; None where the window has no weight and took no step"""
    weight: float
    accuracy_B: list[float | None]
    """per block slot, the share of labels that the drafter ranks first; None where a slot has no label"""
    gradient_norm: float
    """before clipping"""
    learning_rate: float
    gradient_diversity: float | None
    gradient_cosine: float | None
    """mean over the pairs of micro-batches; like the diversity from sketches, off by one or two percent"""
    counts: Counts
    bad_rows: list[int]
    """store rows left out because their features were not finite"""
    committed_at: float
    """seconds of the monotonic clock"""


@dataclass(frozen=True)
class EvaluationResult:
    """The held-out samples under the weights after ``window`` windows."""

    window: int
    loss: float | None
    accuracy_B: list[float | None]


@dataclass(frozen=True)
class SaveResult:
    """A checkpoint of the weights after ``window`` windows is being written to ``path``."""

    window: int
    path: Path


Result = WindowResult | EvaluationResult | SaveResult


@dataclass(frozen=True)
class Saving:
    """Where checkpoints go, and what they say of the run."""

    folder: Path
    origin: Origin


@dataclass
class _Sums:
    losses: LossSums
    counts: Counts = field(default_factory=Counts)
    bad_rows: list[int] = field(default_factory=list)

    def add(self, losses: LossSums, output: TargetOutput) -> None:
        self.losses = self.losses + losses
        self.counts = self.counts + output.counts
        self.bad_rows += output.bad_rows.tolist()


@dataclass(frozen=True)
class _Record:
    """What one drafter tells the others of a window or an evaluation. Plain values."""

    loss: float
    weight: float
    hits_B: NDArray[np.int64]
    labels_B: NDArray[np.int64]
    counts: Counts
    bad_rows: list[int]
    sketches_nK: NDArray[np.float32] | None
    """of the gradients of its micro-batches"""

    def __add__(self, other: _Record) -> _Record:
        sketches = [one for one in (self.sketches_nK, other.sketches_nK) if one is not None]
        return _Record(
            loss=self.loss + other.loss,
            weight=self.weight + other.weight,
            hits_B=self.hits_B + other.hits_B,
            labels_B=self.labels_B + other.labels_B,
            counts=self.counts + other.counts,
            bad_rows=self.bad_rows + other.bad_rows,
            sketches_nK=np.concatenate(sketches) if sketches else None,
        )


class DrafterStep:
    """One drafter's part: takes target outputs in plan order, sums, and commits together with the others.

    The first drafter gives a result when a window or an evaluation is complete, the others none. ``drafter``
    is changed in place; outside the stage read it only when the pipeline has ended.
    """

    def __init__(
        self,
        drafter: Drafter,
        head: TargetHead,
        config: Config,
        total_windows: int,
        *,
        diversity: bool,
        group: Group | None = None,
        saving: Saving | None = None,
    ) -> None:
        self.drafter = drafter
        self.device = head.head_VH.device
        self._head = head
        self._loss = block_loss(config.drafter)
        self._budget = config.drafter.anchor_budget
        self._most_bad = config.training.max_bad_samples
        self._bad: set[int] = set()
        self._held_out_loss: float | None = None
        self._epoch = self._results = 0
        self._parameters = dict(drafter.named_parameters())
        self._optimizer = Optimizer(self._parameters.values(), config.optimizer, total_windows)
        self._gradients = MicroBatchGradients(self._parameters.values()) if diversity else None
        self._group: Group = group or Alone()
        self._saving = saving
        self._writer = CheckpointWriter()
        self._sums = self._empty()

    async def __call__(self, output: TargetOutput) -> Result | None:
        """Raises NonFiniteError for a non-finite loss, gradient or weight, or too many bad samples."""
        work = output.work
        if work.purpose == "save":
            return self._save(work.window)
        self.add(output)
        if not work.closes:
            return None
        sums, self._sums = self._sums, self._empty()
        if work.purpose == "evaluate":
            return await self._evaluated(sums, work)
        return await self._committed(sums, work)

    def add(self, output: TargetOutput) -> None:
        """Add a micro-batch's gradient and sums; an evaluation's have no gradient."""
        work = output.work
        sums_of = loss_only if work.purpose == "evaluate" else add_gradient
        features, budget = output.features, self._budget
        losses = sums_of(self.drafter, self._head, features, loss=self._loss, anchor_budget=budget)
        if work.purpose == "train" and self._gradients and len(work.rows_D):
            self._gradients.after_micro_batch()
        self._sums.add(losses, output)
        self._refuse_bad(self._bad.union(self._sums.bad_rows), self._sums.bad_rows)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint of a drafter of the same shape."""
        header, tensors = checkpoint.header, checkpoint.tensors
        weights = _with_prefix(tensors, "drafter.")
        self.drafter.load_state_dict(weights)
        self._optimizer.restore(self._parameters, _with_prefix(tensors, "optimizer."), header.windows)
        self._bad, self._held_out_loss = set(header.bad_rows), header.held_out_loss
        self._epoch, self._results = header.epoch, header.results

    def close(self) -> None:
        """Wait for the checkpoint that is being written. Raises what writing it raised."""
        self._writer.join()

    async def _committed(self, sums: _Sums, work: Work) -> WindowResult | None:
        sketches_nK = self._gradients.finish_window() if self._gradients else None
        gradients = list(self._parameters.values())
        record = await self._all(gradients, sums, sketches_nK)
        loss = _mean_loss(record)
        sketches_nK = record.sketches_nK
        learning_rate = self._optimizer.learning_rate
        self._writer.join()
        norm = self._optimizer.commit(record.weight)
        self._epoch = work.epoch
        if self._group.rank:
            return None
        return WindowResult(
            window=work.window,
            epoch=work.epoch,
            loss=loss,
            weight=record.weight,
            accuracy_B=_accuracy(record),
            gradient_norm=norm,
            learning_rate=learning_rate,
            gradient_diversity=None if sketches_nK is None else diversity(sketches_nK),
            gradient_cosine=None if sketches_nK is None else mean_cosine(sketches_nK),
            counts=record.counts,
            bad_rows=record.bad_rows,
            committed_at=perf_counter(),
        )

    async def _evaluated(self, sums: _Sums, work: Work) -> EvaluationResult | None:
        record = await self._all([], sums, None)
        self._held_out_loss = _mean_loss(record)
        if self._group.rank:
            return None
        return EvaluationResult(work.window, self._held_out_loss, _accuracy(record))

    async def _all(
        self, parameters: list[nn.Parameter], sums: _Sums, sketches_nK: NDArray[np.float32] | None
    ) -> _Record:
        """The sums over all drafters, in rank order; their gradients are summed in ``.grad``."""
        losses = sums.losses
        mine = _Record(
            loss=losses.loss.item(),
            weight=losses.weight.item(),
            hits_B=losses.hits_B.cpu().numpy(),
            labels_B=losses.labels_B,
            counts=sums.counts,
            bad_rows=sums.bad_rows,
            sketches_nK=sketches_nK,
        )
        first, *others = await self._group.reduce(parameters, mine)
        record = sum(others, start=first)
        self._bad.update(record.bad_rows)
        self._refuse_bad(self._bad, record.bad_rows)
        self._results += 1
        return record

    def _refuse_bad(self, bad: set[int], rows: list[int]) -> None:
        if len(bad) > self._most_bad:
            raise NonFiniteError(
                f"the target's features of {len(bad)} samples are not finite, the last of them store row "
                f"{rows[-1]}; training.max_bad_samples allows {self._most_bad}"
            )

    def _save(self, windows: int) -> SaveResult | None:
        if self._saving is None:
            return None
        header = Header(
            windows=windows,
            epoch=self._epoch,
            results=self._results,
            bad_rows=tuple(sorted(self._bad)),
            held_out_loss=self._held_out_loss,
            origin=self._saving.origin,
        )
        weights = {f"drafter.{name}": weight for name, weight in self._parameters.items()}
        moments = self._optimizer.state(self._parameters)
        path = path_of(self._saving.folder, windows)
        self._writer.write(
            path, header, weights | {f"optimizer.{name}": one for name, one in moments.items()}
        )
        return SaveResult(windows, path)

    def _empty(self) -> _Sums:
        return _Sums(LossSums.zero(self.drafter.shape.block_size, self.device))


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): one for name, one in tensors.items() if name.startswith(prefix)}


def _mean_loss(record: _Record) -> float | None:
    if not record.weight:
        return None
    loss = record.loss / record.weight
    if not math.isfinite(loss):
        raise NonFiniteError(f"the loss is {loss}")
    return loss


def _accuracy(record: _Record) -> list[float | None]:
    counted = np.maximum(record.labels_B, 1)
    return [
        hit / of if labels else None
        for hit, of, labels in zip(
            record.hits_B.tolist(), counted.tolist(), record.labels_B.tolist(), strict=True
        )
    ]
