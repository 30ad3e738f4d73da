"""The DFlash drafter: a few decoder layers whose blocks attend to the target's features and to themselves.

Parameter names and shapes are those of the released checkpoints (no prefix, no embedding, no head); the
embedding and the head are the target's own, frozen, and passed in as a :class:`TargetHead`.
Source: arXiv 2602.06036, sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from dflash.models.attention import BlockGroups, block_attention
from dflash.models.shape import DrafterShape


@dataclass(frozen=True)
class TargetHead:
    """What the drafter borrows from the target, frozen."""

    embedding_VH: Tensor
    head_VH: Tensor


@dataclass(frozen=True)
class Context:
    """Keys and values of one micro-batch's context features, one pair per drafter layer, each [T, G, D].

    Documents stand end to end without padding; ``offsets_D`` int64[D + 1] says where each one starts.
    """

    pairs: list[tuple[Tensor, Tensor]]
    offsets_D: NDArray[np.int64]

    def detached(self) -> Context:
        """Leaves that collect gradients chunk by chunk; :meth:`backward` then passes them on once."""
        pairs = [(k.detach().requires_grad_(), v.detach().requires_grad_()) for k, v in self.pairs]
        return Context(pairs, self.offsets_D)

    def backward(self, leaves: Context) -> None:
        """Carry the gradients collected in ``leaves`` back through the context's own projections."""
        joined = [
            (tensor, leaf.grad)
            for pair, leaf_pair in zip(self.pairs, leaves.pairs, strict=True)
            for tensor, leaf in zip(pair, leaf_pair, strict=True)
            if leaf.grad is not None
        ]
        if joined:
            tensors, grads = zip(*joined, strict=True)
            torch.autograd.backward(tensors, grads)


class Attention(nn.Module):
    """Queries from the block; keys and values from context and block through the same projections."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(width, shape.hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(shape.head_dim, eps=shape.rms_norm_eps)
        self.k_norm = nn.RMSNorm(shape.head_dim, eps=shape.rms_norm_eps)

    def key_value(self, x_xH: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Keys (normed and rotated) and values [..., G, D] of hidden states [..., H]."""
        split = (*x_xH.shape[:-1], -1, self.head_dim)
        key = rotate(self.k_norm(self.k_proj(x_xH).view(split)), rope)
        return key, self.v_proj(x_xH).view(split)

    def forward(
        self,
        x_NBH: Tensor,
        context: tuple[Tensor, Tensor],
        rope: tuple[Tensor, Tensor],
        partition: BlockGroups,
    ) -> Tensor:
        split = (*x_NBH.shape[:-1], -1, self.head_dim)
        query = rotate(self.q_norm(self.q_proj(x_NBH).view(split)), rope)
        key, value = self.key_value(x_NBH, rope)
        out: Tensor = self.o_proj(block_attention(query, *context, key, value, partition).flatten(-2))
        return out


class FeedForward(nn.Module):
    """SwiGLU, as in Qwen3."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """Pre-norm decoder layer. The context enters attention as it is: no input norm, no feed-forward."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.mlp = FeedForward(shape)

    def forward(
        self,
        x_NBH: Tensor,
        context: tuple[Tensor, Tensor],
        rope: tuple[Tensor, Tensor],
        partition: BlockGroups,
    ) -> Tensor:
        x_NBH = x_NBH + self.self_attn(self.input_layernorm(x_NBH), context, rope, partition)
        out: Tensor = x_NBH + self.mlp(self.post_attention_layernorm(x_NBH))
        return out


class Drafter(nn.Module):
    """The trained model. Use :meth:`encode` once per micro-batch and :meth:`draft` per chunk of blocks."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.shape = shape
        features = len(shape.target_layer_ids) * shape.hidden_size
        self.fc = nn.Linear(features, shape.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.layers: Sequence[Layer] = nn.ModuleList(Layer(shape) for _ in range(shape.layers))  # type: ignore[assignment]
        self.norm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)

    def encode(self, features_TF: Tensor, offsets_D: NDArray[np.int64]) -> Context:
        """Project context features once into every layer's keys and values.

        Args:
            features_TF: [T, K * H], the target's features of all documents, end to end.
            offsets_D: int64[D + 1], where each document starts.
        """
        lengths = np.diff(offsets_D)
        positions = np.arange(offsets_D[-1]) - np.repeat(offsets_D[:-1], lengths)
        rope = self._rope(torch.from_numpy(positions), features_TF)
        context_TH = self.hidden_norm(self.fc(features_TF))
        return Context([layer.self_attn.key_value(context_TH, rope) for layer in self.layers], offsets_D)

    def draft(
        self, context: Context, partition: BlockGroups, position_N: Tensor, token_N: Tensor, head: TargetHead
    ) -> Tensor:
        """Hidden states [N, B, H] of N blocks after the final norm, ready for the target's head.

        Slot k of a block is to predict the token at anchor + k; slot 0 holds the clean anchor token.

        Args:
            partition: the blocks' groups, from :func:`dflash.models.attention.group_blocks`.
            position_N: int64[N], the anchors' positions in their documents.
            token_N: int64[N], the clean tokens at the anchors.
        """
        block = self.shape.block_size
        ids_NB = token_N.new_full((len(token_N), block), self.shape.mask_token_id)
        ids_NB[:, 0] = token_N
        x_NBH = functional.embedding(ids_NB, head.embedding_VH)
        within = torch.arange(block, device=position_N.device)
        rope = self._rope(position_N[:, None] + within, x_NBH)
        for layer, pair in zip(self.layers, context.pairs, strict=True):
            x_NBH = layer(x_NBH, pair, rope, partition)
        out: Tensor = self.norm(x_NBH)
        return out

    def _rope(self, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [..., 1, D] of absolute positions, computed in fp32 (fp64 when asked for).

        Half precision would lose the angle at long positions.
        """
        size = self.shape.head_dim
        exact = torch.promote_types(like.dtype, torch.float32)
        exponent = torch.arange(0, size, 2, dtype=exact, device=like.device) / size
        angle = positions.to(like.device, exact)[..., None] * self.shape.rope_theta**-exponent
        angle = torch.cat([angle, angle], dim=-1)[..., None, :]
        return angle.cos().to(like.dtype), angle.sin().to(like.dtype)


def rotate(x_xhD: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary position embedding, halves convention (as Qwen3 and Llama in transformers)."""
    cos, sin = rope
    first, second = x_xhD.chunk(2, dim=-1)
    return x_xhD * cos + torch.cat([-second, first], dim=-1) * sin
