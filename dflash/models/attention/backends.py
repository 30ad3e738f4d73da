"""Which backend computes a chunk's attention."""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dflash.config import AttentionName
from dflash.errors import UsageError
from dflash.models.attention.grouped import group_blocks
from dflash.models.attention.reference import ReferenceAttention, dense_mask
from dflash.models.attention.sdpa import SdpaAttention


class BlockAttention(Protocol):
    """Softmax attention of N blocks over their contexts and themselves, scale ``D ** -0.5``."""

    def __call__(
        self,
        q_NBHD: Tensor,
        context_key_TGD: Tensor,
        context_value_TGD: Tensor,
        key_NBGD: Tensor,
        value_NBGD: Tensor,
    ) -> Tensor:
        """Differentiable in every argument; the softmax is in fp32 or better.

        Shapes: N blocks of B positions, H query heads, G key/value heads (H a multiple of G; query head h
        shares key/value head h // (H / G)), head size D, T context positions. Returns [N, B, H, D].
        """
        ...


Computed = Literal["reference", "sdpa", "flex", "grouped"]


def backend_for(name: AttentionName, device: torch.device) -> Computed:
    """What ``name`` means on ``device``: ``auto`` is flex on CUDA and grouped, the fast CPU path, elsewhere.

    Raises:
        UsageError: flex is asked for where there is no CUDA.
    """
    on_cuda = device.type == "cuda"
    if name == "auto":
        return "flex" if on_cuda else "grouped"
    if name == "flex" and not on_cuda:
        raise UsageError(
            f"drafter.attention 'flex' has no backward pass on {device.type}: take 'auto' or 'grouped'"
        )
    return name


def prepare_attention(
    name: AttentionName,
    document_N: NDArray[np.int64],
    position_N: NDArray[np.int64],
    offsets_D: NDArray[np.int64],
    block_size: int,
    device: torch.device,
) -> BlockAttention:
    """The attention of a chunk's N blocks by the backend ``name``, for all layers.

    Args:
        document_N: document of each block, ascending.
        position_N: anchor position of each block, ascending within a document.
        offsets_D: int64[D + 1], where each document's context starts in the flat context.

    Raises:
        UsageError: as :func:`backend_for`.
    """
    match backend_for(name, device):
        case "reference":
            return ReferenceAttention(dense_mask(document_N, position_N, offsets_D, block_size, device))
        case "sdpa":
            return SdpaAttention(dense_mask(document_N, position_N, offsets_D, block_size, device))
        case "grouped":
            return group_blocks(document_N, position_N, offsets_D, device)
        case "flex":
            from dflash.models.attention.flex import tile_blocks  # costs, and only CUDA runs need it

            return tile_blocks(document_N, position_N, offsets_D, block_size, device)
