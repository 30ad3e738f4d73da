"""The obvious attention: every score, one mask, a plain softmax."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def dense_mask(
    document_N: NDArray[np.int64],
    position_N: NDArray[np.int64],
    offsets_D: NDArray[np.int64],
    block_size: int,
    device: torch.device,
) -> Tensor:
    """bool[N * B, T + N * B]: what each block position (row) sees, of context first and then of all blocks.

    Arguments as for :func:`dflash.models.attention.prepare_attention`.
    """
    start_N1 = offsets_D[document_N][:, None]
    context_T = np.arange(offsets_D[-1])
    sees_context_NT = (start_N1 <= context_T) & (context_T < start_N1 + position_N[:, None])
    sees_block_NN = np.eye(len(document_N), dtype=np.bool_)
    sees_NK = np.hstack([sees_context_NT, sees_block_NN.repeat(block_size, axis=1)])
    return torch.from_numpy(sees_NK.repeat(block_size, axis=0)).to(device)


def context_and_blocks(context_TGD: Tensor, blocks_NBGD: Tensor) -> Tensor:
    """[G, T + N * B, D]: keys or values in the order of the mask's columns."""
    return torch.cat([context_TGD, blocks_NBGD.flatten(0, 1)]).transpose(0, 1)


@dataclass(frozen=True)
class ReferenceAttention:
    """A :class:`BlockAttention` that the others are held against. Quadratic in time and memory."""

    mask_QK: Tensor
    """from :func:`dense_mask`"""

    def __call__(
        self,
        q_NBHD: Tensor,
        context_key_TGD: Tensor,
        context_value_TGD: Tensor,
        key_NBGD: Tensor,
        value_NBGD: Tensor,
    ) -> Tensor:
        shared = q_NBHD.shape[2] // key_NBGD.shape[2]
        key_GKD = context_and_blocks(context_key_TGD, key_NBGD)
        value_GKD = context_and_blocks(context_value_TGD, value_NBGD)
        exact = torch.promote_types(q_NBHD.dtype, torch.float32)
        q_HQD = q_NBHD.flatten(0, 1).transpose(0, 1).to(exact)
        scores_HQK = q_HQD @ key_GKD.to(exact).repeat_interleave(shared, dim=0).mT / q_HQD.shape[-1] ** 0.5
        weights_HQK = scores_HQK.masked_fill(~self.mask_QK, float("-inf")).softmax(dim=-1)
        out_HQD: Tensor = weights_HQK @ value_GKD.to(exact).repeat_interleave(shared, dim=0)
        return out_HQD.transpose(0, 1).reshape(q_NBHD.shape).to(q_NBHD.dtype)
