"""Packed documents in any causal LM of transformers: attention document by document, on every device.

Neither flex nor varlen attention trains or even runs on a CPU, and one dense mask over the packed row costs
several times what its documents cost alone. So attention is a loop over the documents; all else in the
model, which is most of its work, runs on the whole row at once.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dflash.errors import UsageError

# Not a word with "flash" in it: transformers takes those for kernels of flash attention.
NAME = "packed_documents"


def register() -> None:
    """Make the attention known to transformers under :data:`NAME`; twice does no harm."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, _document_attention)
    # The documents' bounds say everything; no mask is ever built.
    AttentionMaskInterface.register(NAME, _no_mask)


def _document_attention(
    module: nn.Module,
    query_1HTD: Tensor,
    key_1GTD: Tensor,
    value_1GTD: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    cu_seq_lens_q: Tensor,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention inside each document, as transformers calls it; returns [1, T, H, D].

    ``cu_seq_lens_q`` int64[D + 1] says where documents start, as for variable-length kernels. A sliding
    window of w lets a position see itself and the w - 1 before it.
    """
    if softcap is not None:
        raise UsageError("the packed layout knows no soft-capped scores: use a strategy that pads")
    parts = []
    for start, end in pairwise(cu_seq_lens_q.tolist()):
        window_SS = _window_mask(end - start, sliding_window, query_1HTD.device)
        parts.append(
            functional.scaled_dot_product_attention(
                query_1HTD[:, :, start:end],
                key_1GTD[:, :, start:end],
                value_1GTD[:, :, start:end],
                attn_mask=window_SS,
                is_causal=window_SS is None,
                scale=scaling,
                enable_gqa=query_1HTD.shape[1] != key_1GTD.shape[1],
            )
        )
    return torch.cat(parts, dim=2).transpose(1, 2), None


def _window_mask(length: int, window: int | None, device: torch.device) -> Tensor | None:
    """bool[S, S]: whether a query sees a key, ``0 <= query - key < window``.

    None where the window holds the whole document: the causal kernel without a mask is the faster one.
    """
    if window is None or length <= window:
        return None
    place = torch.arange(length, device=device)
    distance = place[:, None] - place
    return (distance >= 0) & (distance < window)


def _no_mask(*_: Any, **__: Any) -> None:
    return None
