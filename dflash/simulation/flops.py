"""Floating-point operations of the models by formula, for one micro-batch's token, square, anchor and pair.

A product of an m x k and a k x n matrix counts as 2 * m * k * n, causal attention as its two products over
the lower half of the square, and everything else as nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from dflash.simulation.sizes import ModelSizes


@dataclass(frozen=True)
class Work:
    """Operations per unit of what a micro-batch holds; see ``BatchShapes``."""

    target_per_token: int
    target_per_square: float
    drafter_per_anchor: int
    drafter_per_label: int
    drafter_per_context: int
    drafter_per_pair: float


def count(sizes: ModelSizes) -> Work:
    """Of a target's forward pass up to its last feature layer, and a drafter's forward and backward pass.

    A backward pass costs twice its forward pass, except that nobody asks for the gradient of the features
    below ``fc``, and the head is frozen. A block sees half of its sample's context on average, as anchors lie
    evenly.
    """
    target, layer, drafter = sizes.target, sizes.drafter_layer, sizes.drafter
    block, layers = drafter.block_size, drafter.layers
    scores = 4 * target.num_attention_heads * target.head_dim
    head = 2 * target.hidden_size * target.vocab_size
    per_slot = 2 * layer.layer_parameters + block * scores
    return Work(
        target_per_token=2 * sizes.target_layers_run * target.layer_parameters,
        target_per_square=sizes.target_layers_run * scores / 2,
        drafter_per_anchor=3 * layers * block * per_slot,
        drafter_per_label=2 * head,
        drafter_per_context=2 * 2 * sizes.feature_width * target.hidden_size
        + 3 * layers * 2 * layer.key_value_parameters,
        drafter_per_pair=3 * layers * block * scores / 2,
    )
