"""Attention without a mask over all: blocks that see about as much of their contexts run as one batch.

The (N*B) x (T + N*B) matrix never exists. A block's own B positions are one small product for all blocks;
what remains is a prefix of its document, and prefixes are cut where they end:

- consecutive blocks of a document form *runs* of a few blocks; a run reads context up to its last anchor,
- runs of equally many blocks and similar prefixes, of whatever documents, form a *piece*, one batch,
- and only the positions between a piece's first and last anchor need a mask at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dflash.models.attention.recomputed import Piece, recomputed_attention

RUN = 4
"""Most blocks of a run: more would waste scores between its anchors, fewer would be small products."""
SHORTEST = 0.75
"""A piece's shortest prefix as a share of its longest: less than a quarter of its scores is waste."""
PIECE = 4096
"""Most (block, context position) pairs of a piece of several runs: its scores stay in the cache between the
few passes over them. With 4 heads and blocks of 16 they are 1 MB of fp32."""


@dataclass(frozen=True)
class GroupedAttention:
    """A :class:`BlockAttention`; blocks without any context are in no piece."""

    pieces: tuple[Piece, ...]

    def __call__(
        self,
        q_NBHD: Tensor,
        context_key_TGD: Tensor,
        context_value_TGD: Tensor,
        key_NBGD: Tensor,
        value_NBGD: Tensor,
    ) -> Tensor:
        return recomputed_attention(
            q_NBHD, context_key_TGD, context_value_TGD, key_NBGD, value_NBGD, self.pieces
        )


@dataclass(frozen=True)
class _Run:
    first: int
    """its first block's index in the chunk"""
    blocks: int
    prefix: int
    """context positions that its last block sees"""
    start: int
    """of its document, in the flat context"""


def group_blocks(
    document_N: NDArray[np.int64],
    position_N: NDArray[np.int64],
    offsets_D: NDArray[np.int64],
    device: torch.device,
) -> GroupedAttention:
    """Sort a chunk's blocks into pieces. How they are sorted changes no result.

    Arguments as for :func:`dflash.models.attention.prepare_attention`.
    """
    runs = sorted(_runs(document_N, position_N, offsets_D), key=lambda run: (run.blocks, -run.prefix))
    pieces: list[list[_Run]] = []
    for run in runs:
        if run.prefix and pieces and _fits(run, pieces[-1]):
            pieces[-1].append(run)
        elif run.prefix:
            pieces.append([run])
    return GroupedAttention(tuple(_piece(piece, position_N, device) for piece in pieces))


def _runs(
    document_N: NDArray[np.int64], position_N: NDArray[np.int64], offsets_D: NDArray[np.int64]
) -> Iterator[_Run]:
    documents, firsts, counts = np.unique(document_N, return_index=True, return_counts=True)
    for start, begin, count in zip(
        offsets_D[documents].tolist(), firsts.tolist(), counts.tolist(), strict=True
    ):
        for first in range(begin, begin + count, RUN):
            blocks = min(RUN, begin + count - first)
            yield _Run(first, blocks, int(position_N[first + blocks - 1]), start)


def _fits(run: _Run, piece: list[_Run]) -> bool:
    longest = piece[0]
    return (
        run.blocks == longest.blocks
        and run.prefix >= SHORTEST * longest.prefix
        and (len(piece) + 1) * run.blocks * longest.prefix <= PIECE
    )


def _piece(runs: list[_Run], position_N: NDArray[np.int64], device: torch.device) -> Piece:
    width = runs[0].prefix
    slots_Rn = np.array([run.first for run in runs])[:, None] + np.arange(runs[0].blocks)
    start_R1, prefix_R1 = (np.array([[run.start, run.prefix] for run in runs]).T)[:, :, None]
    context_RS = start_R1 + np.minimum(np.arange(width), prefix_R1 - 1)
    seen_Rn = position_N[slots_Rn]
    first = int(seen_Rn.min())
    hidden_RnE = np.arange(first, width) >= seen_Rn[:, :, None]
    slots, context, hidden = (
        torch.from_numpy(part).to(device) for part in (slots_Rn, context_RS, hidden_RnE)
    )
    return Piece(slots, context, first, hidden)
