"""Where a drafter starts: as the target's own last layers, reading the target's last feature.

A drafter with random weights has to find by chance which context position tells a slot what, among dozens
that look alike, and stays at the frequencies of tokens until it has. The target's last layers know: given
the same features their keys and values mean something to their queries, and what they write is what the
target's final norm and head read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dflash.models.drafter import Drafter

FC_NOISE = 0.1
"""Share of the fan-in deviation with which the other features enter at first."""
FINAL_NORM_SCALE = 0.5
"""Of the target's final norm: logits in the head's geometry, but not yet as sure of themselves."""


@torch.no_grad()
def initialise(drafter: Drafter, model: Any, seed: int) -> Drafter:
    """Set every weight, from the seed and from ``model``, a causal LM of transformers.

    Weights that the target's last layers have under the same name and shape are copied; all others (in a
    drafter of other widths) are normal with variance 1 / fan-in, from a generator of their own.
    """
    generator = torch.Generator().manual_seed(seed)
    for weight in drafter.parameters():
        _fan_in(weight, generator)
    layers = model.base_model.layers
    first = len(layers) - len(drafter.layers)
    for mine, its in zip(drafter.layers, layers[max(0, first) :], strict=False):
        _copy_equal(mine, dict(its.named_parameters()))
    _copy_equal(drafter.norm, {"weight": model.base_model.norm.weight * FINAL_NORM_SCALE})
    _copy_equal(drafter.hidden_norm, {"weight": layers[max(0, first)].input_layernorm.weight})
    width = drafter.shape.hidden_size
    drafter.fc.weight.mul_(FC_NOISE)
    drafter.fc.weight[:, -width:] += torch.eye(width, device=drafter.fc.weight.device)
    return drafter


def _fan_in(weight: nn.Parameter, generator: torch.Generator) -> None:
    if weight.ndim == 2:
        weight.copy_(torch.randn(weight.shape, generator=generator) * weight.shape[1] ** -0.5)
    else:
        weight.fill_(1.0)


def _copy_equal(module: nn.Module, weights: dict[str, Tensor]) -> None:
    for name, weight in module.named_parameters():
        if name in weights and weights[name].shape == weight.shape:
            weight.copy_(weights[name])
