"""Obvious versions of the models, to hold the fast ones against. Dense, slow, one document at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.models.qwen3.modeling_qwen3 import apply_rotary_pos_emb, repeat_kv

from dflash.models.anchors import AnchorSlots, build_slots
from dflash.models.drafter import Drafter, TargetHead
from dflash.models.features import FeatureBatch
from dflash.models.loss import CrossEntropy
from dflash.models.position_weights import ExponentialDecay
from dflash.models.shape import DrafterShape

GAMMA = 3.0
LOSS = CrossEntropy(ExponentialDecay(GAMMA))

SMALL_SIZES = {
    "vocab_size": 97,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
"""Of a target of any family of transformers."""


def small_shape(**changes: object) -> DrafterShape:
    """A drafter with grouped-query attention and sizes that are all different, so no axis is mistaken."""
    sizes: dict[str, object] = {
        "hidden_size": 24,
        "intermediate_size": 40,
        "layers": 2,
        "heads": 6,
        "kv_heads": 2,
        "head_dim": 8,
        "vocab_size": 61,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "block_size": 5,
        "mask_token_id": 60,
        "target_layers": 8,
        "target_layer_ids": (1, 3, 5),
    }
    return DrafterShape(**{**sizes, **changes})  # type: ignore[arg-type]


def random_head(shape: DrafterShape, seed: int = 0) -> TargetHead:
    generator = torch.Generator().manual_seed(seed)
    embedding, head = torch.randn(
        2, shape.vocab_size, shape.hidden_size, generator=generator, dtype=torch.float64
    )
    return TargetHead(embedding, head)


def random_drafter(shape: DrafterShape, seed: int = 1) -> Drafter:
    """In fp64, with every norm weight away from one, so that a forgotten norm shows."""
    drafter = Drafter(shape).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in drafter.parameters():
            if weight.ndim == 1:
                weight.copy_(0.5 + torch.rand(weight.shape, generator=generator))
            else:
                weight.copy_(torch.randn(weight.shape, generator=generator) * weight.shape[1] ** -0.5)
    return drafter


def random_documents(
    shape: DrafterShape, lengths: list[int], anchors: list[list[int]], seed: int = 2
) -> FeatureBatch:
    """Documents with random tokens and features; everything is supervised, one document in three has gaps."""
    rng = np.random.default_rng(seed)
    tokens = [rng.integers(0, shape.vocab_size, length) for length in lengths]
    masks = [np.ones(length, dtype=np.uint8) for length in lengths]
    for mask in masks[::3]:
        mask[rng.integers(0, len(mask), len(mask) // 4)] = 0
    slots = build_slots(
        tokens,
        masks,
        [np.array(found, dtype=np.int64) for found in anchors],
        block_size=shape.block_size,
    )
    width = len(shape.target_layer_ids) * shape.hidden_size
    return FeatureBatch(
        features_TF=torch.from_numpy(rng.standard_normal((sum(lengths), width))),
        offsets_D=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        rows_D=np.arange(100, 100 + len(lengths)),
        slots=slots,
    )


@dataclass(frozen=True)
class BlockCase:
    """Where blocks stand, and the sizes of an attention over them."""

    lengths: list[int]
    anchors: list[list[int]]
    block: int
    heads: int
    kv_heads: int
    size: int

    @property
    def document_N(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(len(self.anchors)), [len(found) for found in self.anchors])

    @property
    def position_N(self) -> NDArray[np.int64]:
        return np.array([position for found in self.anchors for position in found], dtype=np.int64)

    @property
    def offsets_D(self) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)


def attention_inputs(case: BlockCase, seed: int = 0) -> list[Tensor]:
    """Queries, context keys and values, and the blocks' own, in fp64."""
    generator = torch.Generator().manual_seed(seed)
    blocks, context = (len(case.document_N), case.block), (sum(case.lengths),)
    shapes = [
        (*blocks, case.heads, case.size),
        *[(*context, case.kv_heads, case.size)] * 2,
        *[(*blocks, case.kv_heads, case.size)] * 2,
    ]
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def slow_attention(
    case: BlockCase, q: Tensor, past_key: Tensor, past_value: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    """[N, B, H, D], one position and head at a time, from lists of what each one sees."""
    out = torch.zeros_like(q)
    for n, (document, anchor) in enumerate(zip(case.document_N, case.position_N, strict=True)):
        context = range(case.offsets_D[document], case.offsets_D[document] + anchor)
        for h in range(case.heads):
            g = h * case.kv_heads // case.heads
            keys = torch.stack([*(past_key[t, g] for t in context), *key[n, :, g]])
            values = torch.stack([*(past_value[t, g] for t in context), *value[n, :, g]])
            for b in range(case.block):
                weight = torch.stack([(q[n, b, h] @ k / math.sqrt(case.size)).exp() for k in keys])
                out[n, b, h] = weight @ values / weight.sum()
    return out


def _rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * (x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps))


def dense_hidden(drafter: Drafter, head: TargetHead, features_SF: Tensor, slots: AnchorSlots) -> Tensor:
    """[N, B, H] of one document's blocks, with the whole (N*B) x (S + N*B) matrix and its mask.

    Rotary embedding and key/value repetition are transformers' own.
    """
    shape, state = drafter.shape, dict(drafter.named_parameters())
    blocks, block, context = len(slots), shape.block_size, len(features_SF)
    positions_NB = torch.from_numpy(slots.position_N)[:, None] + torch.arange(block)
    position_KV = torch.cat([torch.arange(context), positions_NB.flatten()])
    # In fp64: transformers' own are rounded to fp32, which test_layers.py compares.
    inverse = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim)
    frequencies = position_KV[:, None] * inverse
    angle = torch.cat([frequencies, frequencies], -1)[None]
    cos, sin = angle.cos(), angle.sin()

    sees = torch.zeros(blocks * block, context + blocks * block, dtype=torch.bool)
    for j in range(blocks):
        own = slice(j * block, (j + 1) * block)
        sees[own, : slots.position_N[j]] = True  # strictly before the anchor
        sees[own, context + j * block : context + (j + 1) * block] = True

    def w(name: str) -> Tensor:
        return state[name + ".weight"]

    eps = shape.rms_norm_eps
    ids = torch.full((blocks, block), shape.mask_token_id)
    ids[:, 0] = torch.from_numpy(slots.token_N)
    x = head.embedding_VH[ids.flatten()]
    ctx = _rms(features_SF @ w("fc").T, w("hidden_norm"), eps)
    for i in range(shape.layers):
        name = f"layers.{i}."
        y = _rms(x, w(name + "input_layernorm"), eps)

        def heads(z: Tensor) -> Tensor:
            return z.view(1, len(z), -1, shape.head_dim).transpose(1, 2)

        both = torch.cat([ctx, y])
        q = _rms(heads(y @ w(name + "self_attn.q_proj").T), w(name + "self_attn.q_norm"), eps)
        k = _rms(heads(both @ w(name + "self_attn.k_proj").T), w(name + "self_attn.k_norm"), eps)
        v = heads(both @ w(name + "self_attn.v_proj").T)
        padded_q = torch.cat([torch.zeros(1, shape.heads, context, shape.head_dim, dtype=q.dtype), q], 2)
        rotated_q, k = apply_rotary_pos_emb(padded_q, k, cos, sin)
        q = rotated_q[:, :, context:]
        k, v = repeat_kv(k, shape.heads // shape.kv_heads), repeat_kv(v, shape.heads // shape.kv_heads)
        scores = (q @ k.transpose(-1, -2)) / shape.head_dim**0.5
        weights = scores.masked_fill(~sees, float("-inf")).softmax(-1)
        attended = (weights @ v).transpose(1, 2).reshape(len(x), -1)
        x = x + attended @ w(name + "self_attn.o_proj").T
        y = _rms(x, w(name + "post_attention_layernorm"), eps)
        gate = y @ w(name + "mlp.gate_proj").T
        x = x + (gate * torch.sigmoid(gate) * (y @ w(name + "mlp.up_proj").T)) @ w(name + "mlp.down_proj").T
    return _rms(x, w("norm"), eps).view(blocks, block, -1)


def document_slots(batch: FeatureBatch, document: int) -> AnchorSlots:
    slots = batch.slots
    mine = slots.document_N == document
    return slots.take(mine)


def dense_loss(drafter: Drafter, head: TargetHead, batch: FeatureBatch) -> tuple[Tensor, float]:
    """(sum of weighted cross-entropies, sum of weights) of a micro-batch, document by document."""
    total, weight = torch.zeros((), dtype=torch.float64), 0.0
    for document in range(len(batch.offsets_D) - 1):
        slots = document_slots(batch, document)
        if not len(slots):
            continue
        features = batch.features_TF[batch.offsets_D[document] : batch.offsets_D[document + 1]]
        logits = dense_hidden(drafter, head, features, slots) @ head.head_VH.T
        picked = logits.log_softmax(-1).gather(-1, torch.from_numpy(slots.label_NB)[..., None])[..., 0]
        weight_NB = slots.labelled_NB * np.exp((1 - np.arange(slots.label_NB.shape[1])) / GAMMA)
        total = total - (picked * torch.from_numpy(weight_NB)).sum()
        weight += float(weight_NB.sum())
    return total, weight
