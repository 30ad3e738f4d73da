"""Attention by torch's flex_attention: a compiled kernel that skips tiles in which nothing is seen.

Lengths are padded to a *shape class*, the next power of two of at least 128, and the kernel is compiled
once for each pair of classes (block positions, context positions), heads and dtype: a handful in a run.
Padding costs memory only, as nobody sees a padded position and the kernel skips its tiles; a padded query
sees itself, so its softmax is finite.

Which tiles are seen follows from intervals, so the dense mask never exists on any device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, flex_attention

Kernel = Callable[..., Tensor]

TILE = 128
"""Rows and columns of a tile, the unit that flex_attention skips or computes."""
SHAPE_CLASSES = 64
"""Compilations of the kernel before torch gives up and computes the dense scores instead."""


@dataclass(frozen=True)
class FlexAttention:
    """A :class:`BlockAttention` for CUDA; on a CPU the kernel has no backward pass."""

    mask: BlockMask
    queries: int
    """block positions with their padding"""
    context: int
    """context positions with their padding"""
    kernel: Kernel

    def __call__(
        self,
        q_NBHD: Tensor,
        context_key_TGD: Tensor,
        context_value_TGD: Tensor,
        key_NBGD: Tensor,
        value_NBGD: Tensor,
    ) -> Tensor:
        rows = q_NBHD.shape[0] * q_NBHD.shape[1]
        query_1HQD = _padded(q_NBHD.flatten(0, 1), self.queries)
        key_1GKD, value_1GKD = (
            torch.cat([_padded(past, self.context), _padded(own.flatten(0, 1), self.queries)], dim=2)
            for past, own in ((context_key_TGD, key_NBGD), (context_value_TGD, value_NBGD))
        )
        grouped = q_NBHD.shape[2] != key_NBGD.shape[2]
        out_1HQD = self.kernel(query_1HQD, key_1GKD, value_1GKD, block_mask=self.mask, enable_gqa=grouped)
        out_QHD: Tensor = out_1HQD[0, :, :rows].transpose(0, 1)
        return out_QHD.reshape(q_NBHD.shape)


def tile_blocks(
    document_N: NDArray[np.int64],
    position_N: NDArray[np.int64],
    offsets_D: NDArray[np.int64],
    block_size: int,
    device: torch.device,
    *,
    compiled: bool = True,
) -> FlexAttention:
    """Find the tiles that a chunk's blocks see. ``compiled=False`` is the same in plain operations, dense.

    Other arguments as for :func:`dflash.models.attention.prepare_attention`.
    """
    queries, context = shape_class(len(document_N) * block_size), shape_class(int(offsets_D[-1]))
    seen_2P = np.zeros((2, -(-queries // block_size)), dtype=np.int64)  # padded blocks see no context
    seen_2P[:, : len(document_N)] = offsets_D[document_N]
    seen_2P[1, : len(document_N)] += position_N
    start_P, stop_P = torch.from_numpy(seen_2P).to(device)

    def sees(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        block = query // block_size
        in_context = (start_P[block] <= key) & (key < stop_P[block])
        seen: Tensor = in_context | ((key >= context) & ((key - context) // block_size == block))
        return seen

    block_IR = (torch.arange(queries, device=device) // block_size).view(-1, TILE)
    start_IR1, stop_IR1 = start_P[block_IR][..., None], stop_P[block_IR][..., None]
    left_J = torch.arange(0, context, TILE, device=device)
    some_IJ = ((start_IR1 < left_J + TILE) & (stop_IR1 > left_J) & (start_IR1 < stop_IR1)).any(1)
    whole_IJ = ((start_IR1 <= left_J) & (left_J + TILE <= stop_IR1)).all(1)
    first_I, last_I = block_IR[:, 0], block_IR[:, -1]
    own_II = (first_I[:, None] <= last_I) & (first_I <= last_I[:, None])
    mask = BlockMask.from_kv_blocks(
        *_listed(torch.cat([some_IJ & ~whole_IJ, own_II], dim=1)),
        *_listed(torch.cat([whole_IJ, torch.zeros_like(own_II)], dim=1)),
        BLOCK_SIZE=TILE,
        mask_mod=sees,
        seq_lengths=(queries, context + queries),
    )
    kernel: Kernel = compiled_kernel() if compiled else cast(Kernel, flex_attention)
    return FlexAttention(mask, queries, context, kernel)


def shape_class(length: int) -> int:
    """The length that ``length`` positions are padded to: a power of two, 128 at least."""
    return max(TILE, 1 << (length - 1).bit_length()) if length else TILE


@cache
def compiled_kernel() -> Kernel:
    """flex_attention, to be compiled at its first call with each shape class."""
    import torch._dynamo

    torch._dynamo.config.recompile_limit = max(SHAPE_CLASSES, torch._dynamo.config.recompile_limit)
    return cast(Kernel, torch.compile(flex_attention, dynamic=False))


def _listed(tiles_IK: Tensor) -> tuple[Tensor, Tensor]:
    """int32[1, 1, I] tiles in each row, and int32[1, 1, I, K] their columns, those that count first."""
    columns_IK = tiles_IK.to(torch.int8).argsort(dim=1, descending=True, stable=True)
    return tiles_IK.sum(1, dtype=torch.int32)[None, None], columns_IK.to(torch.int32)[None, None]


def _padded(x_TxD: Tensor, length: int) -> Tensor:
    """[1, x, length, D], with zeros behind the T positions."""
    return functional.pad(x_TxD, (0, 0, 0, 0, 0, length - len(x_TxD))).transpose(0, 1)[None]
