"""Softmax attention over pieces of context that keeps no scores: they are computed again going backward.

With scores S = q k^T / sqrt(D) over all that a block position sees, and L = log sum exp S (over the row):

    forward    o = exp(S - L) v
    backward   P = exp(S - L)          from q, k and the saved L: one product and one exp
               dv = P^T do
               dS = P * (do v^T - delta),   delta = sum(do * o) over the row
               dq = dS k / sqrt(D),   dk = dS^T q / sqrt(D)

What a row sees may be cut into parts a, b with outputs and sums of their own: L = log(e^La + e^Lb) and
o = e^(La - L) oa + e^(Lb - L) ob. So the parts are a block's own positions, computed at once for all
blocks, and its context, computed piece by piece in buffers that stay in the cache.
Source: FlashAttention (arXiv 2205.14135, section 3.1 and appendix B.2) and FlashAttention-2 (arXiv
2307.08691, section 3.1) for the backward pass from L; Milakov and Gimelshein (arXiv 1805.02867) for the
joined softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class Piece:
    """R runs of n blocks that see at most S context positions, S >= 1."""

    slots_Rn: Tensor
    """int64[R, n]: the blocks, as indices into the chunk"""
    context_RS: Tensor
    """int64[R, S]: context positions, as indices into the flat context; clamped inside the document"""
    first: int
    """every block of the piece sees all of its context before this one of the S positions"""
    hidden_RnE: Tensor
    """bool[R, n, S - first]: True where a block must not see one of the positions from ``first`` on"""


def recomputed_attention(
    q_NBHD: Tensor,
    context_key_TGD: Tensor,
    context_value_TGD: Tensor,
    key_NBGD: Tensor,
    value_NBGD: Tensor,
    pieces: Sequence[Piece],
) -> Tensor:
    """Attention of each block over itself and over its piece's context; [N, B, H, D].

    All products are in fp32 or better, as half precision saves nothing on a CPU. Shapes as in
    :class:`dflash.models.attention.BlockAttention`.
    """
    shared = q_NBHD.shape[2] // key_NBGD.shape[2]
    exact = torch.promote_types(q_NBHD.dtype, torch.float32)
    out_GNMD = _Attention.apply(  # type: ignore[no-untyped-call]
        _by_kv_head(q_NBHD.to(exact) * q_NBHD.shape[-1] ** -0.5, shared),
        context_key_TGD.to(exact).transpose(0, 1).contiguous(),
        context_value_TGD.to(exact).transpose(0, 1).contiguous(),
        _by_kv_head(key_NBGD.to(exact), 1),
        _by_kv_head(value_NBGD.to(exact), 1),
        pieces,
    )
    blocks, block, _, size = q_NBHD.shape
    out = out_GNMD.view(len(out_GNMD), blocks, shared, block, size).permute(1, 3, 0, 2, 4)
    joined: Tensor = out.reshape(q_NBHD.shape).to(q_NBHD.dtype)
    return joined


def _by_kv_head(x_NBHD: Tensor, shared: int) -> Tensor:
    """[G, N, M, D]: the M = H / G * B rows of a block that share a key/value head stand together.

    So grouped-query attention needs no repeated keys: shared heads are more rows of the same product.
    """
    blocks, block, heads, size = x_NBHD.shape
    x = x_NBHD.view(blocks, block, heads // shared, shared, size).permute(2, 0, 3, 1, 4)
    return x.reshape(heads // shared, blocks, shared * block, size)


class _Attention(torch.autograd.Function):
    """q [G, N, M, D], scaled; contexts [G, T, D]; own keys and values [G, N, B, D]; returns [G, N, M, D]."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        past_key: Tensor,
        past_value: Tensor,
        key: Tensor,
        value: Tensor,
        pieces: Sequence[Piece],
    ) -> Tensor:
        own, own_lse = _attend(q @ key.mT, value)
        # Finite, so that a row which sees nothing has a softmax of weight zero instead of none.
        hidden = torch.finfo(q.dtype).min
        past, past_lse = torch.zeros_like(own), torch.full_like(own_lse, hidden)
        for piece in pieces:
            scores = _hide(_rows(q, piece) @ _context(past_key, piece).mT, piece, hidden)
            out, lse = _attend(scores, _context(past_value, piece))
            _at_rows(past, piece, out, Tensor.index_copy_)
            _at_rows(past_lse, piece, lse, Tensor.index_copy_)
        lse = torch.logaddexp(own_lse, past_lse)
        out = own.mul_((own_lse - lse).exp_()).add_(past.mul_((past_lse - lse).exp_()))
        ctx.save_for_backward(q, past_key, past_value, key, value, out, lse)
        ctx.pieces = pieces
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, past_key, past_value, key, value, out, lse = ctx.saved_tensors
        rows = q, grad, lse, (grad * out).sum(dim=-1, keepdim=True)
        own = _gradients([part.flatten(0, 1) for part in rows], key.flatten(0, 1), value.flatten(0, 1))
        dq, dkey, dvalue = (part.view_as(like) for part, like in zip(own, (q, key, value), strict=True))
        dpast_key, dpast_value = torch.zeros_like(past_key), torch.zeros_like(past_value)
        for piece in ctx.pieces:
            context = _context(past_key, piece), _context(past_value, piece)
            parts = _gradients([_rows(part, piece) for part in rows], *context, piece)
            _at_rows(dq, piece, parts[0], Tensor.index_add_)
            for whole, part in zip((dpast_key, dpast_value), parts[1:], strict=True):
                whole.index_add_(1, piece.context_RS.flatten(), part.view(len(whole), -1, whole.shape[-1]))
        return dq, dpast_key, dpast_value, dkey, dvalue, None


def _attend(scores: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(scores) @ value, and the log of the softmax's denominator. Overwrites the scores."""
    top = scores.amax(dim=-1, keepdim=True)
    weights = scores.sub_(top).exp_()
    total = weights.sum(dim=-1, keepdim=True)
    return (weights @ value).div_(total), total.log_().add_(top)


def _gradients(
    rows: Sequence[Tensor], key: Tensor, value: Tensor, piece: Piece | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """dq (of the scaled q), dk and dv of one batch of products, from its rows' q, do, L and delta."""
    q, grad, lse, delta = rows
    weights = torch.baddbmm(-lse, q, key.mT).exp_()
    if piece is not None:
        # After the exp: a score that was not in the sum may be far above it, even infinite here.
        _hide(weights, piece, 0.0)
    dscores = torch.baddbmm(-delta, grad, value.mT).mul_(weights)
    return dscores @ key, dscores.mT @ q, weights.mT @ grad


def _hide(scores: Tensor, piece: Piece, fill: float) -> Tensor:
    """Overwrite, in [G * R, n * M, S], what must not be seen. Only a piece's last positions can be hidden."""
    runs, blocks, hidden = piece.hidden_RnE.shape
    if hidden:
        tail = scores.view(-1, runs, blocks, scores.shape[1] // blocks, scores.shape[2])[..., piece.first :]
        tail.masked_fill_(piece.hidden_RnE[:, :, None, :], fill)
    return scores


def _rows(x_GNMx: Tensor, piece: Piece) -> Tensor:
    """[G * R, n * M, x]: the rows of a piece's blocks, one batch for each run and key/value head."""
    runs, blocks = piece.slots_Rn.shape
    groups, _, rows, width = x_GNMx.shape
    return x_GNMx.index_select(1, piece.slots_Rn.flatten()).view(groups * runs, blocks * rows, width)


def _context(x_GTD: Tensor, piece: Piece) -> Tensor:
    """[G * R, S, D]: the context of a piece's runs."""
    runs, seen = piece.context_RS.shape
    groups, _, size = x_GTD.shape
    return x_GTD.index_select(1, piece.context_RS.flatten()).view(groups * runs, seen, size)


def _at_rows(whole_GNMx: Tensor, piece: Piece, part: Tensor, put: Callable[..., Tensor]) -> None:
    """Put back what :func:`_rows` has taken."""
    groups, _, rows, width = whole_GNMx.shape
    put(whole_GNMx, 1, piece.slots_Rn.flatten(), part.view(groups, -1, rows, width))
