"""Whether a run fits: bytes of a target's device, a drafter's device and the host, by formula."""

from __future__ import annotations

from dataclasses import dataclass

from dflash.simulation.sizes import ModelSizes

COMPUTE_BYTES = 2
"""bf16"""
TRAINED_BYTES = 16
"""of a trained weight: fp32 itself, its gradient and AdamW's two moments"""
LOSS_CHUNK = 2048
"""labels whose logits exist at once, in fp32 and with their gradient"""
FRAMEWORK_BYTES = 2 * 10**9
"""CUDA context, workspaces of matrix products, fragmentation"""


@dataclass(frozen=True)
class Memory:
    """Bytes at the peak."""

    target: int
    drafter: int
    host: int
    """of the slots that carry features"""
    most_tokens: int
    """the largest token budget that fits both devices, to 256 tokens; 0 if their weights do not"""
    fits: bool


def memory(
    sizes: ModelSizes,
    token_budget: int,
    device_bytes: float,
    drafters: int,
    slots: int,
    eager_length: int = 0,
) -> Memory:
    """For a micro-batch that fills the token budget.

    Args:
        eager_length: the longest sample, where the target's attention is not fused: its scores then exist.
    """

    def fits(tokens: int) -> bool:
        return max(target_bytes(sizes, tokens, eager_length), drafter_bytes(sizes, tokens)) <= device_bytes

    low, high = 0, 2**14  # in units of 256 tokens
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(256 * middle) else (low, middle - 1)
    return Memory(
        target=target_bytes(sizes, token_budget, eager_length),
        drafter=drafter_bytes(sizes, token_budget),
        host=drafters * slots * token_budget * COMPUTE_BYTES * sizes.feature_width,
        most_tokens=256 * low,
        fits=fits(token_budget),
    )


def target_bytes(sizes: ModelSizes, tokens: int, eager_length: int = 0) -> int:
    """Weights, features, and the widest moment of a layer's forward pass.

    That is either the feed-forward part, with its input, residual and three tensors of its own width, or
    attention, with queries, keys, values and output; without fusion also the scores, in bf16 and in fp32.
    """
    target = sizes.target
    weights = sizes.target_layers_run * target.layer_parameters + target.vocab_size * target.hidden_size
    own, shared = target.num_attention_heads * target.head_dim, target.num_key_value_heads * target.head_dim
    forward = 2 * target.hidden_size + 3 * target.intermediate_size
    attention = 2 * target.hidden_size + 2 * own + 2 * shared
    scores = 3 * target.num_attention_heads * eager_length
    features = sizes.feature_width + sizes.feature_width  # the layers' outputs, and their concatenation
    per_token = features + max(forward, attention + scores)
    return FRAMEWORK_BYTES + COMPUTE_BYTES * (weights + tokens * per_token)


def drafter_bytes(sizes: ModelSizes, tokens: int) -> int:
    """Trained weights, frozen embedding and head, the context, and the activations of one chunk of blocks.

    Of the context there are the features, the projection with its norm, and keys and values of every layer
    with their gradients. Of a chunk, every tensor that a layer keeps for its backward pass: inputs of both
    norms and of all products.
    """
    target, layer, drafter = sizes.target, sizes.drafter_layer, sizes.drafter
    own, shared = target.num_attention_heads * target.head_dim, target.num_key_value_heads * target.head_dim
    frozen = 2 * target.vocab_size * target.hidden_size
    context = sizes.feature_width + 3 * target.hidden_size + drafter.layers * 3 * 2 * shared
    kept = 4 * target.hidden_size + 3 * own + 2 * shared + 4 * layer.intermediate_size
    chunk = drafter.anchor_budget * drafter.layers * kept
    return (
        FRAMEWORK_BYTES
        + TRAINED_BYTES * sizes.drafter_parameters
        + COMPUTE_BYTES * (frozen + tokens * context + chunk)
        + LOSS_CHUNK * target.vocab_size * 8
    )
