"""Anchors: which positions of a sample a block is trained from, with the labels of its slots.

Everything here is numpy and happens on the feed's side of the pipeline. A sample's anchors depend on
(seed, epoch, store row) and its own loss mask alone: not on batch mates, layout, worker or world size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dflash.models.labels import block_labels

Int64 = NDArray[np.int64]


def valid_positions(loss_mask_S: NDArray[np.uint8]) -> Int64:
    """Positions ``a`` at which a block may start: ``mask[a] and mask[a + 1]``.

    The rule looks at the sample alone. A bound on the padded width, as several trainers use, would make
    a sample's anchors depend on what it is batched with.
    """
    supervised = loss_mask_S != 0
    return np.flatnonzero(supervised[:-1] & supervised[1:]).astype(np.int64)


def choose_anchors(
    loss_mask_S: NDArray[np.uint8], *, seed: int, epoch: int, row: int, max_anchors: int, stride: int
) -> Int64:
    """Draw ``min(max_anchors, ceil(valid / stride))`` anchors without replacement, ascending.

    Each valid position gets one 64-bit word of Philox4x64 with key (seed, epoch) and the store row in the
    highest word of its counter; the positions with the smallest words are taken. Raw words of a bit
    generator are the one stream that numpy promises never to change, so the draw is the same everywhere.

    Args:
        loss_mask_S: uint8[S], nonzero where a token is supervised.

    Returns:
        int64[k] positions, ascending; empty where the sample has no valid position.
    """
    valid = valid_positions(loss_mask_S)
    count = min(max_anchors, -(-len(valid) // stride))
    if count == len(valid):
        return valid
    words = np.random.Philox(key=[seed, epoch], counter=[0, 0, 0, row]).random_raw(len(valid))
    smallest = np.argsort(words, kind="stable")[:count]
    return np.sort(valid[smallest])


@dataclass(frozen=True)
class AnchorSlots:
    """The blocks of one micro-batch, flattened over its documents and never padded per row.

    N slots of B block positions each, ordered by document and then by position.
    """

    document_N: Int64
    """index of the document (row of the micro-batch) that the block belongs to"""
    position_N: Int64
    """position of the anchor in its document"""
    token_N: Int64
    """the clean token at the anchor"""
    label_NB: Int64
    """the token that slot k is to predict; 0 where there is none"""
    labelled_NB: NDArray[np.bool_]
    """whether slot k has a label: one that exists, is supervised and is not the anchor itself"""

    def __len__(self) -> int:
        return len(self.document_N)

    def take(self, which: slice | NDArray[np.bool_]) -> AnchorSlots:
        """Some of the blocks, in their order."""
        return AnchorSlots(
            self.document_N[which],
            self.position_N[which],
            self.token_N[which],
            self.label_NB[which],
            self.labelled_NB[which],
        )


def build_slots(
    input_ids: Sequence[NDArray[np.integer]],
    loss_masks: Sequence[NDArray[np.uint8]],
    anchors: Sequence[Int64],
    *,
    block_size: int,
) -> AnchorSlots:
    """Flatten the anchors of a micro-batch's documents into slots with labels.

    Args:
        input_ids: per document its own tokens, without padding.
        loss_masks: per document uint8, as long as its tokens.
        anchors: per document int64 positions, from :func:`choose_anchors`.
    """
    lengths = np.array([len(tokens) for tokens in input_ids], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    document_N = np.repeat(np.arange(len(anchors), dtype=np.int64), [len(found) for found in anchors])
    if not len(document_N):
        none = np.zeros(0, dtype=np.int64)
        empty = np.zeros((0, block_size), dtype=np.int64)
        return AnchorSlots(none, none, none, empty, empty.astype(bool))
    position_N = np.concatenate(anchors).astype(np.int64)
    tokens_T = np.concatenate(input_ids).astype(np.int64)
    mask_T = np.concatenate(loss_masks) != 0
    start_N, end_N = starts[document_N], starts[document_N + 1]
    label_NB, labelled_NB = block_labels(tokens_T, mask_T, start_N, end_N, position_N, block_size)
    return AnchorSlots(document_N, position_N, tokens_T[start_N + position_N], label_NB, labelled_NB)
