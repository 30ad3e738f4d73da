"""The cost model of any model on any device, from operations counted and rates looked up."""

from __future__ import annotations

from typing import Literal

from dflash.simulation import flops
from dflash.simulation.cost import CostModel, DrafterCost, LoadCost, TargetCost
from dflash.simulation.profile import Rates
from dflash.simulation.sizes import ModelSizes

Attention = Literal["fused", "eager"]

FEATURE_BYTES = 2
"""of one number in a target's features, bf16"""
EAGER_BYTES = 24
"""Memory traffic of one score of one head where attention is not fused, over the full square. Transformers'
eager attention in bf16 writes the product (2), scales it (4), adds the mask (4), takes the softmax in fp32
(6), casts it (6) and reads it for the second product (2)."""
OPTIMIZER_BYTES = 40
"""Memory traffic of an fp32 weight at the end of a window: norm (4), division (8), AdamW (16 in, 12 out)."""


def analytic_cost(sizes: ModelSizes, rates: Rates, attention: Attention = "fused") -> CostModel:
    """Seconds from operations and bytes.

    Args:
        attention: of the target. ``eager`` materialises its scores, and is bound by memory.
    """
    work = flops.count(sizes)
    products = rates.peak_flops.value * rates.efficiency.value
    fused = rates.peak_flops.value * rates.attention_efficiency.value
    per_square = work.target_per_square / fused
    if attention == "eager":
        scores = sizes.target_layers_run * sizes.target.num_attention_heads
        per_square = scores * EAGER_BYTES / rates.memory_bandwidth.value
    # No fixed part: the host dispatches ahead of the device, and the efficiency was measured with it.
    target = TargetCost(0.0, work.target_per_token / products, per_square)
    training = rates.peak_flops.value * rates.training_efficiency.value
    return CostModel(
        target={"padded": target, "packed": target},
        drafter=DrafterCost(
            rates.drafter_overhead.value,
            work.drafter_per_anchor / training,
            work.drafter_per_label / training,
            work.drafter_per_context / training,
            work.drafter_per_pair / fused,
        ),
        load=LoadCost(0.0, 0.0),  # workers on the host read ahead, in memory that nothing else wants
        feature_bytes=FEATURE_BYTES * sizes.feature_width,
        copy_bytes_per_second=rates.host_copy_bandwidth.value,
        optimizer_seconds=OPTIMIZER_BYTES * sizes.drafter_parameters / rates.memory_bandwidth.value,
        reduce_latency=rates.reduce_latency.value,
        reduce_bytes_per_second=rates.reduce_bandwidth.value,
        gradient_bytes=4 * sizes.drafter_parameters,
        error=rates.error.value,
    )


def attention_length(cost: CostModel) -> float:
    """Length at which a padded row's attention costs the target as much as all else, in tokens."""
    target = cost.target["padded"]
    return target.per_token / target.per_square if target.per_square else float("inf")
