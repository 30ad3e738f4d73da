"""The drafter's side of the pipeline: sums gradients over a window, commits it, evaluates between windows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from dflash.config import Config
from dflash.errors import NonFiniteError
from dflash.models.drafter import Drafter, TargetHead
from dflash.models.loss import block_loss
from dflash.pipeline.work import Counts, TargetOutput
from dflash.training.gradients import GradientDiversity
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


@dataclass
class _Sums:
    losses: LossSums
    counts: Counts = field(default_factory=Counts)
    bad_rows: list[int] = field(default_factory=list)

    def add(self, losses: LossSums, output: TargetOutput) -> None:
        self.losses = self.losses + losses
        self.counts = self.counts + output.counts
        self.bad_rows += output.bad_rows.tolist()


class DrafterStep:
    """Takes target outputs in plan order; gives a result when a window or an evaluation is complete.

    ``drafter`` is changed in place; outside the stage read it only when the pipeline has ended.
    """

    def __init__(
        self, drafter: Drafter, head: TargetHead, config: Config, total_windows: int, *, diversity: bool
    ) -> None:
        self.drafter = drafter
        self._head = head
        self._loss = block_loss(config.drafter)
        self._budget = config.drafter.anchor_budget
        self._most_bad = config.training.max_bad_samples
        self._bad = 0
        self._optimizer = Optimizer(drafter.parameters(), config.optimizer, total_windows)
        self._diversity = GradientDiversity(drafter.parameters()) if diversity else None
        self._sums = self._empty()

    def __call__(self, output: TargetOutput) -> WindowResult | EvaluationResult | None:
        """Raises NonFiniteError for a non-finite loss, gradient or weight, or too many bad samples."""
        work = output.work
        self._count_bad(output)
        sums_of = loss_only if work.purpose == "evaluate" else add_gradient
        features, budget = output.features, self._budget
        losses = sums_of(self.drafter, self._head, features, loss=self._loss, anchor_budget=budget)
        if work.purpose == "train" and self._diversity and len(work.rows_D):
            self._diversity.after_micro_batch()
        self._sums.add(losses, output)
        if not work.closes:
            return None
        sums, self._sums = self._sums, self._empty()
        return self._evaluated(sums, output) if work.purpose == "evaluate" else self._committed(sums, output)

    def _committed(self, sums: _Sums, output: TargetOutput) -> WindowResult:
        loss = _mean_loss(sums.losses)
        diversity = self._diversity.finish_window() if self._diversity else None
        learning_rate = self._optimizer.learning_rate
        weight = sums.losses.weight.item()
        norm = self._optimizer.commit(weight)
        return WindowResult(
            window=output.work.window,
            epoch=output.work.epoch,
            loss=loss,
            weight=weight,
            accuracy_B=_accuracy(sums.losses),
            gradient_norm=norm,
            learning_rate=learning_rate,
            gradient_diversity=diversity,
            counts=sums.counts,
            bad_rows=sums.bad_rows,
            committed_at=perf_counter(),
        )

    def _evaluated(self, sums: _Sums, output: TargetOutput) -> EvaluationResult:
        return EvaluationResult(output.work.window, _mean_loss(sums.losses), _accuracy(sums.losses))

    def _count_bad(self, output: TargetOutput) -> None:
        self._bad += len(output.bad_rows)
        if self._bad > self._most_bad:
            raise NonFiniteError(
                f"the target's features of {self._bad} samples are not finite, the last of them store row "
                f"{output.bad_rows[-1]}; training.max_bad_samples allows {self._most_bad}"
            )

    def _empty(self) -> _Sums:
        return _Sums(LossSums.zero(self.drafter.shape.block_size, self._head.head_VH.device))


def _mean_loss(sums: LossSums) -> float | None:
    weight = sums.weight.item()
    if not weight:
        return None
    loss = sums.loss.item() / weight
    if not math.isfinite(loss):
        raise NonFiniteError(f"the loss is {loss}")
    return loss


def _accuracy(sums: LossSums) -> list[float | None]:
    hits = sums.hits_B.cpu().numpy()
    counted = np.maximum(sums.labels_B, 1)
    return [
        hit / of if labels else None
        for hit, of, labels in zip(hits.tolist(), counted.tolist(), sums.labels_B.tolist(), strict=True)
    ]
