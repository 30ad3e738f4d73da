"""Every sample's loss and gradient at weights that stand still.

The loss of a window is a sum over its samples divided by a sum of weights, and a sample's part does not
depend on its batch mates, on the layout or on the plan. So the samples of a pool, each differentiated once,
give the window gradients of every plan of that pool: a strategy is no more than a way of adding them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dflash.batching import packing
from dflash.config import Config
from dflash.data.store import TokenStore
from dflash.errors import NonFiniteError
from dflash.models.drafter import Drafter, TargetHead
from dflash.models.features import FeatureBatch
from dflash.models.loss import block_loss
from dflash.models.target import Target
from dflash.pipeline.stages import load, read_features
from dflash.pipeline.work import Work
from dflash.training.micro_batch import LossSums, add_gradient, loss_only
from dflash.training.sketch import GradientSketch

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SampleGradients:
    """Of S samples, in the order in which their rows were given."""

    rows_S: Int64
    tokens_S: Int64
    """real tokens"""
    losses_S: Float64
    """sums of weight * cross-entropy"""
    weights_S: Float64
    """sums of the labels' weights; 0 where a sample has no anchor"""
    sketches_SK: NDArray[np.float32]
    """sketches of the gradients of the loss sums"""


class Pool:
    """Samples with their target features, which are computed once if they fit into ``most_bytes``.

    A sample's anchors are those of ``(config.training.seed, epoch, row)``, as in training.
    """

    def __init__(
        self,
        store: TokenStore,
        rows: Int64,
        lengths: Int64,
        target: Target,
        config: Config,
        *,
        epoch: int = 0,
        most_bytes: int = 2**30,
    ) -> None:
        self.rows, self.lengths = rows, lengths
        self._store, self._target, self._config, self._epoch = store, target, config, epoch
        self._most_bytes = most_bytes
        self._kept: list[list[FeatureBatch]] = []
        self._kept_bytes = 0
        # By length, so that hardly anything is padded; this layout runs on every target.
        self._order = np.argsort(lengths, kind="stable")
        self._offsets = packing.greedy(lengths, self._order, config.batching.token_budget)

    def __iter__(self) -> Iterator[tuple[int, FeatureBatch]]:
        """Each sample's place in ``rows``, and the sample as a micro-batch of its own."""
        for number, (start, end) in enumerate(pairwise(self._offsets.tolist())):
            chosen = self._order[start:end]
            yield from zip(chosen.tolist(), self._features(number, chosen), strict=True)

    def _features(self, number: int, chosen: Int64) -> list[FeatureBatch]:
        if number < len(self._kept):
            return self._kept[number]
        work = Work(number, "train", self._epoch, 0, "padded", True, self.rows[chosen], self.lengths[chosen])
        loaded = load(work, self._store, self._config.drafter, self._config.training.seed)
        output = read_features(loaded, self._target)
        if len(output.bad_rows):
            raise NonFiniteError(f"the target's features of store row {output.bad_rows[0]} are not finite")
        alone = apart(output.features)
        if number == len(self._kept) and self._kept_bytes + output.features.nbytes <= self._most_bytes:
            self._kept.append(alone)
            self._kept_bytes += output.features.nbytes
        return alone


def sample_gradients(drafter: Drafter, head: TargetHead, pool: Pool, config: Config) -> SampleGradients:
    """Differentiate every sample of a pool at the drafter's present weights, which are left as they are.

    ``.grad`` is cleared.

    Raises:
        NonFiniteError: a sample's features, loss or gradient are not finite.
    """
    count = len(pool.rows)
    sketch = GradientSketch(drafter.parameters())
    loss, budget = block_loss(config.drafter), config.drafter.anchor_budget
    losses, weights = np.zeros(count), np.zeros(count)
    sketches = np.zeros((count, sketch.size), np.float32)
    drafter.zero_grad(set_to_none=True)
    for place, batch in pool:
        sums = add_gradient(drafter, head, batch, loss=loss, anchor_budget=budget)
        losses[place], weights[place] = sums.loss.item(), sums.weight.item()
        sketches[place] = sketch().cpu().numpy()
        drafter.zero_grad(set_to_none=True)
    wrong = ~(np.isfinite(losses) & np.isfinite(sketches).all(axis=1))
    if wrong.any():
        raise NonFiniteError(f"the loss or gradient of store row {pool.rows[wrong][0]} is not finite")
    return SampleGradients(pool.rows, pool.lengths, losses, weights, sketches)


def loss_sums(
    drafter: Drafter, head: TargetHead, batches: Sequence[FeatureBatch], config: Config
) -> tuple[float, float]:
    """The sum of weighted losses and the sum of weights over micro-batches, without a gradient."""
    total = LossSums.zero(drafter.shape.block_size, head.head_VH.device)
    for batch in batches:
        total = total + loss_only(
            drafter, head, batch, loss=block_loss(config.drafter), anchor_budget=config.drafter.anchor_budget
        )
    return total.loss.item(), total.weight.item()


def apart(batch: FeatureBatch) -> list[FeatureBatch]:
    """The documents of a micro-batch, each as a micro-batch of its own. The features are views."""
    alone = []
    for document, (start, end) in enumerate(pairwise(batch.offsets_D.tolist())):
        slots = batch.slots.take(batch.slots.document_N == document)
        alone.append(
            FeatureBatch(
                features_TF=batch.features_TF[start:end],
                offsets_D=np.array([0, end - start], np.int64),
                rows_D=batch.rows_D[document : document + 1],
                slots=type(slots)(
                    np.zeros_like(slots.document_N),
                    slots.position_N,
                    slots.token_N,
                    slots.label_NB,
                    slots.labelled_NB,
                ),
            )
        )
    return alone
