"""The DFlash drafter: a few decoder layers whose blocks attend to the target's features and to themselves.

Parameter names and shapes are those of the released checkpoints (no prefix, no embedding, no head); the
embedding and the head are the target's own, frozen, and passed in as a :class:`TargetHead`.
Source: arXiv 2602.06036, sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from dflash.config import AttentionName, DrafterSettings
from dflash.models.attention import BlockAttention, backend_for, prepare_attention
from dflash.models.layers import Linear, RMSNorm, rope, rotate
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
        self.q_proj = Linear(shape.hidden_size, width)
        self.k_proj = Linear(shape.hidden_size, kv_width)
        self.v_proj = Linear(shape.hidden_size, kv_width)
        self.o_proj = Linear(width, shape.hidden_size)
        self.q_norm = RMSNorm(shape.head_dim, eps=shape.rms_norm_eps)
        self.k_norm = RMSNorm(shape.head_dim, eps=shape.rms_norm_eps)

    def key_value(self, x_xH: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Keys (normed and rotated) and values [..., G, D] of hidden states [..., H]."""
        split = (*x_xH.shape[:-1], -1, self.head_dim)
        value = self.v_proj(x_xH).view(split)
        key = rotate(self.k_norm(self.k_proj(x_xH).view(split)), turn)
        return key.to(value.dtype), value

    def forward(
        self,
        x_NBH: Tensor,
        context: tuple[Tensor, Tensor],
        turn: tuple[Tensor, Tensor],
        attend: BlockAttention,
    ) -> Tensor:
        split = (*x_NBH.shape[:-1], -1, self.head_dim)
        key, value = self.key_value(x_NBH, turn)
        query = rotate(self.q_norm(self.q_proj(x_NBH).view(split)), turn).to(value.dtype)
        out: Tensor = self.o_proj(attend(query, *context, key, value).flatten(-2))
        return out


class FeedForward(nn.Module):
    """SwiGLU, as in Qwen3."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.gate_proj = Linear(shape.hidden_size, shape.intermediate_size)
        self.up_proj = Linear(shape.hidden_size, shape.intermediate_size)
        self.down_proj = Linear(shape.intermediate_size, shape.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """Pre-norm decoder layer. The context enters attention as it is: no input norm, no feed-forward."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.mlp = FeedForward(shape)

    def forward(
        self,
        x_NBH: Tensor,
        context: tuple[Tensor, Tensor],
        turn: tuple[Tensor, Tensor],
        attend: BlockAttention,
    ) -> Tensor:
        x_NBH = x_NBH + self.self_attn(self.input_layernorm(x_NBH), context, turn, attend)
        out: Tensor = x_NBH + self.mlp(self.post_attention_layernorm(x_NBH))
        return out


class Drafter(nn.Module):
    """The trained model. Use :meth:`encode` once per micro-batch and :meth:`draft` per chunk of blocks.

    Weights and gradients keep their own dtype, fp32 in training, whatever the products are computed in;
    norms, rotary angles, softmax and the residual stream are fp32 or better.
    """

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.shape = shape
        self._attention: AttentionName = "auto"
        self._checkpointing = False
        features = len(shape.target_layer_ids) * shape.hidden_size
        self.fc = Linear(features, shape.hidden_size)
        self.hidden_norm = RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.layers: Sequence[Layer] = nn.ModuleList(Layer(shape) for _ in range(shape.layers))  # type: ignore[assignment]
        self.norm = RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)

    def computing_as(self, settings: DrafterSettings) -> Drafter:
        """Set how this drafter computes: backend of attention, dtype of products, checkpointing.

        Changes no weight, and but for rounding no result.

        Raises:
            UsageError: the backend does not run on the device that the weights are on.
        """
        backend_for(settings.attention, self.fc.weight.device)
        self._attention = settings.attention
        self._checkpointing = settings.gradient_checkpointing
        for module in self.modules():
            if isinstance(module, Linear):
                module.compute_dtype = torch.bfloat16 if settings.compute_dtype == "bfloat16" else None
        return self

    def encode(
        self, features_TF: Tensor, offsets_D: NDArray[np.int64], *, first_position: int = 0
    ) -> Context:
        """Project context features once into every layer's keys and values.

        Args:
            features_TF: [T, K * H], the target's features of all documents, end to end.
            offsets_D: int64[D + 1], where each document starts.
            first_position: of every document, where its earlier features have been encoded before. The
                keys and values of more of a document are those of the whole, so a context can grow.
        """
        lengths = np.diff(offsets_D)
        positions = first_position + np.arange(offsets_D[-1]) - np.repeat(offsets_D[:-1], lengths)
        context_TH = self.hidden_norm(self.fc(features_TF))
        turn = self._turn(torch.from_numpy(positions), context_TH)
        pairs = [self._run(layer.self_attn.key_value, context_TH, turn) for layer in self.layers]
        return Context(pairs, offsets_D)

    def prepare_attention(
        self, document_N: NDArray[np.int64], position_N: NDArray[np.int64], offsets_D: NDArray[np.int64]
    ) -> BlockAttention:
        """What :meth:`draft` needs to know of where N blocks stand, by the backend that was set.

        Arguments as for :func:`dflash.models.attention.prepare_attention`.
        """
        places = document_N, position_N, offsets_D
        return prepare_attention(self._attention, *places, self.shape.block_size, self.fc.weight.device)

    def draft(
        self, context: Context, attend: BlockAttention, position_N: Tensor, token_N: Tensor, head: TargetHead
    ) -> Tensor:
        """Hidden states [N, B, H] of N blocks after the final norm, fp32 or better, for the target's head.

        Slot k of a block is to predict the token at anchor + k; slot 0 holds the clean anchor token.

        Args:
            attend: from :meth:`prepare_attention`, or of any other backend, for the same blocks.
            position_N: int64[N], the anchors' positions in their documents.
            token_N: int64[N], the clean tokens at the anchors.
        """
        block = self.shape.block_size
        ids_NB = token_N.new_full((len(token_N), block), self.shape.mask_token_id)
        ids_NB[:, 0] = token_N
        embedded_NBH = functional.embedding(ids_NB, head.embedding_VH)
        x_NBH = embedded_NBH.to(torch.promote_types(embedded_NBH.dtype, torch.float32))
        within = torch.arange(block, device=position_N.device)
        turn = self._turn(position_N[:, None] + within, x_NBH)
        for layer, pair in zip(self.layers, context.pairs, strict=True):
            x_NBH = self._run(layer, x_NBH, pair, turn, attend)
        out: Tensor = self.norm(x_NBH)
        return out

    def _turn(self, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        return rope(positions.to(like.device), self.shape.head_dim, self.shape.rope_theta, like.dtype)

    def _run(self, part: Callable[..., Any], *arguments: Any) -> Any:
        """Call a part of the model; with checkpointing, what it computes inside is not kept."""
        if not (self._checkpointing and torch.is_grad_enabled()):
            return part(*arguments)
        # Nothing here draws random numbers, so there is no generator's state to keep.
        return checkpoint(part, *arguments, use_reentrant=False, preserve_rng_state=False)
