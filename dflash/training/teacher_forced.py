"""Accepted lengths as training sees them: by the very stages, anchors and sums of a held-out evaluation.

On text that a target chose greedily, a block accepts the same tokens whether it is teacher-forced or decoded:
up to the first slot where the drafter errs, the labels are what the target would choose. So at a
verification's anchor

    min(teacher-forced length, tokens of the text behind the anchor) = decoded length

for every verification, except where two logits are so close that rounding decides, since the two paths
compute them in other shapes. This is the *parity gate*. It fails where training reads a feature that
decoding does not, such as one of another layer, or one that does not exist yet at the anchor.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.config import BatchingSettings, Config, DataSettings, DrafterSettings
from dflash.data.store import StoreSample, TokenStore, write_store
from dflash.errors import NonFiniteError
from dflash.models.decode import Response
from dflash.models.drafter import Drafter
from dflash.models.loss import block_loss
from dflash.models.target import Target, target_head
from dflash.pipeline.stages import load, read_features
from dflash.training.micro_batch import accepted_lengths
from dflash.training.schedule import held_out_micro_batches, in_training_order

Int64 = NDArray[np.int64]

PARITY_TOLERANCE = 0.01
"""Share of verifications that may differ; one of them always may."""


@dataclass(frozen=True)
class TeacherForced:
    """Lengths of R responses that stand beside their decoded ones."""

    lengths_R: Sequence[Int64]
    """per response int64[v]: at the anchor of each verification, cut like the decoded length"""
    everywhere: Int64
    """int64: at every position of every response where a block can start"""


@dataclass(frozen=True)
class Parity:
    """How many verifications have the same length, teacher-forced and decoded."""

    same: int
    verifications: int

    @property
    def holds(self) -> bool:
        return self.verifications - self.same <= max(1, PARITY_TOLERANCE * self.verifications)


def teacher_forced(drafter: Drafter, model: Any, responses: Sequence[Response]) -> TeacherForced:
    """Run the responses through training's path as held-out samples, a block at every position.

    Args:
        model: the whole target. It is cut down to the layers that are read, and cannot decode afterwards.

    Raises:
        NonFiniteError: the target's features of a response are not finite.
    """
    shape, device = drafter.shape, model.device
    head = target_head(model)
    target = Target(model, shape.target_layer_ids, device)
    found_R: list[dict[int, int]] = [{} for _ in responses]
    with tempfile.TemporaryDirectory(prefix="dflash-") as folder:
        store = _store(Path(folder) / "responses.arrow", responses)
        config = _every_position(store, shape.block_size)
        loss, budget = block_loss(config.drafter), config.drafter.anchor_budget
        for work in in_training_order([], held_out_micro_batches(store, config), [0]):
            output = read_features(load(work, store, config.drafter, seed=0), target)
            if len(output.bad_rows):
                raise NonFiniteError(f"the target's features of response {output.bad_rows[0]} are not finite")
            batch = output.features
            lengths_N = accepted_lengths(drafter, head, batch, loss=loss, anchor_budget=budget)
            rows_N = batch.rows_D[batch.slots.document_N]
            for row, anchor, length in zip(rows_N, batch.slots.position_N, lengths_N, strict=True):
                found_R[row][int(anchor)] = int(length)
    return TeacherForced(
        [_at_anchors(found, response) for found, response in zip(found_R, responses, strict=True)],
        np.array([length for found in found_R for length in found.values()], np.int64),
    )


def parity(forced: TeacherForced, responses: Sequence[Response]) -> Parity:
    """Compare, for text that the target chose greedily."""
    same = sum(
        int((forced_lengths == response.lengths).sum())
        for forced_lengths, response in zip(forced.lengths_R, responses, strict=True)
    )
    return Parity(same, sum(len(response.lengths) for response in responses))


def _at_anchors(found: dict[int, int], response: Response) -> Int64:
    anchors = response.anchors
    behind = len(response.text) - 1 - anchors
    return np.minimum(np.array([found[int(anchor)] for anchor in anchors], np.int64), behind)


def _store(path: Path, responses: Sequence[Response]) -> TokenStore:
    """The responses as held-out samples, each the row of its number."""

    def samples() -> Iterator[StoreSample]:
        for number, response in enumerate(responses):
            mask = np.zeros(len(response.text), np.uint8)
            mask[len(response.prompt) :] = 1
            yield StoreSample(response.text, mask, f"response {number}", held_out=True)

    write_store(path, samples(), {})
    return TokenStore.open(path)


def _every_position(store: TokenStore, block_size: int) -> Config:
    longest = int(store.lengths.max())
    return Config(
        data=DataSettings(held_out_samples=len(store)),
        batching=BatchingSettings(token_budget=max(BatchingSettings().token_budget, longest)),
        drafter=DrafterSettings(
            block_size=block_size,
            max_anchors=longest,
            anchor_stride=1,
            anchor_budget=max(DrafterSettings().anchor_budget, block_size),
        ),
    )
