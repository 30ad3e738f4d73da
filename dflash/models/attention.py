"""Attention of blocks over their context, without the (N*B) x (T + N*B) matrix.

A block sees context strictly before its anchor and all of itself; no other block, no other document.
So its scores are two small pieces, one over a prefix of its document's context and one over its own B
positions, joined in one softmax. Blocks of documents that have equally many blocks and similar prefixes
are computed together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class BlockGroup:
    """R documents with n blocks each, whose longest visible prefix is S context positions."""

    slots_Rn: Tensor
    """int64[R, n]: the blocks, as indices into the chunk"""
    context_RS: Tensor
    """int64[R, S]: context positions, as indices into the flat context; clamped inside the document"""
    hidden_RnS: Tensor
    """bool[R, n, S]: True where a block must not see the context position"""


@dataclass(frozen=True)
class BlockGroups:
    """A partition of a chunk's blocks."""

    groups: list[BlockGroup]
    inverse_N: Tensor
    """int64[N]: where each block of the chunk stands in the concatenated groups"""


def group_blocks(
    document_N: NDArray[np.int64],
    position_N: NDArray[np.int64],
    offsets_D: NDArray[np.int64],
    device: torch.device,
) -> BlockGroups:
    """Partition the blocks of a chunk into groups that are computed as one batch.

    Documents are put together when they have the same number of blocks and their longest prefixes agree
    up to a factor of two, so less than half of a group's scores is waste. Grouping changes no result.

    Args:
        document_N: document of each block, ascending.
        position_N: anchor position of each block, ascending within a document.
        offsets_D: int64[D + 1], where each document's context starts in the flat context.
    """
    documents, first_slot, counts = np.unique(document_N, return_index=True, return_counts=True)
    prefix = position_N[first_slot + counts - 1]
    # frexp's exponent e of an integer x says 2^(e-1) <= x < 2^e; 0 for an empty prefix.
    magnitude = np.frexp(prefix.astype(np.float64))[1]
    groups, order = [], []
    for count, size in sorted({(int(c), int(m)) for c, m in zip(counts, magnitude, strict=True)}):
        chosen = np.flatnonzero((counts == count) & (magnitude == size))
        slots_Rn = first_slot[chosen][:, None] + np.arange(count)
        order.append(slots_Rn.ravel())
        width = int(prefix[chosen].max())
        start_R1 = offsets_D[documents[chosen]][:, None]
        last_R1 = prefix[chosen][:, None] - 1
        context_RS = start_R1 + np.minimum(np.arange(width), np.maximum(last_R1, 0))
        hidden_RnS = np.arange(width) >= position_N[slots_Rn][:, :, None]
        groups.append(
            BlockGroup(*(torch.from_numpy(part).to(device) for part in (slots_Rn, context_RS, hidden_RnS)))
        )
    return BlockGroups(groups, torch.from_numpy(np.argsort(np.concatenate(order))).to(device))


def block_attention(
    q_NBHD: Tensor,
    context_key_TGD: Tensor,
    context_value_TGD: Tensor,
    key_NBGD: Tensor,
    value_NBGD: Tensor,
    partition: BlockGroups,
) -> Tensor:
    """Softmax attention of every block over its context prefix and itself, scale ``D ** -0.5``.

    Shapes: N blocks of B positions, H query heads, G key/value heads (H a multiple of G), head size D,
    T context positions. Returns [N, B, H, D].
    """
    parts = [
        _group_attention(q_NBHD, context_key_TGD, context_value_TGD, key_NBGD, value_NBGD, group)
        for group in partition.groups
    ]
    return torch.cat(parts).index_select(0, partition.inverse_N)


def _group_attention(
    q_NBHD: Tensor,
    ctx_key: Tensor,
    ctx_value: Tensor,
    key_NBGD: Tensor,
    value_NBGD: Tensor,
    group: BlockGroup,
) -> Tensor:
    rows, count = group.slots_Rn.shape
    _, block, heads, size = q_NBHD.shape
    kv_heads = key_NBGD.shape[2]
    shared = heads // kv_heads
    width = group.context_RS.shape[1]
    slots = group.slots_Rn.flatten()

    # g: key/value head, h: query head that shares it, q and k: position in the block, s: context position
    q = q_NBHD.index_select(0, slots).view(rows, count, block, kv_heads, shared, size) * size**-0.5
    q = q.permute(0, 3, 1, 4, 2, 5)  # R g n h q D
    key = key_NBGD.index_select(0, slots).view(rows, count, block, kv_heads, size).permute(0, 3, 1, 2, 4)
    value = value_NBGD.index_select(0, slots).view(rows, count, block, kv_heads, size).permute(0, 3, 1, 2, 4)
    past_key = ctx_key.index_select(0, group.context_RS.flatten()).view(rows, width, kv_heads, size)
    past_value = ctx_value.index_select(0, group.context_RS.flatten()).view(rows, width, kv_heads, size)

    flat_q = q.reshape(rows, kv_heads, count * shared * block, size)
    past_scores = (flat_q @ past_key.permute(0, 2, 3, 1)).view(rows, kv_heads, count, shared, block, width)
    past_scores = past_scores.masked_fill(group.hidden_RnS[:, None, :, None, None, :], float("-inf"))
    own_q = q.reshape(rows, kv_heads, count, shared * block, size)
    own_scores = (own_q @ key.transpose(-1, -2)).view(rows, kv_heads, count, shared, block, block)

    weights = torch.cat([past_scores, own_scores], dim=-1).softmax(dim=-1)
    past, own = weights.tensor_split([width], dim=-1)
    out = past.reshape(rows, kv_heads, count * shared * block, width) @ past_value.permute(0, 2, 1, 3)
    out = out.view(rows, kv_heads, count, shared, block, size)
    own_out = own.reshape(rows, kv_heads, count, shared * block, block) @ value
    out = out + own_out.view(rows, kv_heads, count, shared, block, size)
    joined: Tensor = out.permute(0, 2, 4, 1, 3, 5).reshape(rows * count, block, heads, size)
    return joined
