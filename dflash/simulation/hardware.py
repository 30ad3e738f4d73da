"""From a profile and a model's sizes to a cost model, whichever of the two ways the profile has."""

from __future__ import annotations

import hashlib

import msgspec

from dflash.config import DrafterSettings
from dflash.errors import UsageError
from dflash.simulation.analytic import FEATURE_BYTES, Attention, analytic_cost
from dflash.simulation.cost import CostModel, DrafterCost, LoadCost, TargetCost
from dflash.simulation.profile import Measured, Profile
from dflash.simulation.shapes import AnchorRule
from dflash.simulation.sizes import ModelSizes

_MEASURED_FEATURE_BYTES = 4
"""the trainer's targets run in fp32"""
_SIZES = ("layers", "block_size", "features", "intermediate_size", "anchor_budget")


def cost_model(profile: Profile, sizes: ModelSizes, attention: Attention = "fused") -> CostModel:
    """Seconds of these models on this machine.

    Raises:
        UsageError: the profile was measured with other models, or attention is asked for that was not.
    """
    if profile.rates is not None:
        return analytic_cost(sizes, profile.rates, attention)
    assert profile.measured is not None  # one of the two, as the profile itself checks
    if profile.measured.sizes != fingerprint(sizes):
        raise UsageError(
            f"profile {profile.name} was measured with other models than {sizes.name} with these drafter "
            "settings: calibrate with them"
        )
    if attention != "fused":
        raise UsageError(f"profile {profile.name} was measured: its attention is what it is")
    return _measured_cost(profile.measured, sizes)


def anchor_rule(profile: Profile, drafter: DrafterSettings) -> AnchorRule:
    """How many anchors samples get; without a measured share every token counts as supervised."""
    shares = (1.0, 1.0)
    if profile.measured is not None:
        shares = profile.measured.supervised_share, profile.measured.label_share
    return AnchorRule(drafter.max_anchors, drafter.anchor_stride, drafter.block_size, *shares)


def cores(profile: Profile) -> int | None:
    """That all workers share; None where each has a device of its own."""
    return profile.measured.cores if profile.measured is not None else None


def fingerprint(sizes: ModelSizes) -> str:
    """Of all that a micro-batch's seconds depend on besides its shape."""
    drafter = {name: getattr(sizes.drafter, name) for name in _SIZES}
    return hashlib.sha256(msgspec.json.encode([sizes.target, drafter])).hexdigest()[:16]


def _measured_cost(measured: Measured, sizes: ModelSizes) -> CostModel:
    stages = (measured.target_padded, measured.target_packed, measured.drafter)
    return CostModel(
        target={
            "padded": TargetCost(*measured.target_padded.coefficients),
            "packed": TargetCost(*measured.target_packed.coefficients),
        },
        drafter=DrafterCost(*measured.drafter.coefficients),
        load=LoadCost(*measured.load.coefficients),
        feature_bytes=(FEATURE_BYTES if measured.cores is None else _MEASURED_FEATURE_BYTES)
        * sizes.feature_width,
        copy_bytes_per_second=measured.copy_bandwidth.value,
        optimizer_seconds=measured.optimizer_seconds.value,
        reduce_latency=0.0,
        reduce_bytes_per_second=measured.copy_bandwidth.value,
        gradient_bytes=4 * sizes.drafter_parameters,
        cores=measured.cores,
        target_slowdown=measured.target_slowdown.value,
        drafter_slowdown=measured.drafter_slowdown.value,
        error=max(stage.leave_one_out for stage in stages),
    )
