"""Loss sums of one micro-batch, with or without their gradient.

Everything is a sum, so any partition of a window into micro-batches and chunks gives the same gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dflash.models.anchors import AnchorSlots
from dflash.models.attention import group_blocks
from dflash.models.drafter import Context, Drafter, TargetHead
from dflash.models.features import FeatureBatch
from dflash.models.loss import weighted_cross_entropy


@dataclass(frozen=True)
class LossSums:
    """Sums over the labels of one or more micro-batches. Device tensors, so that adding needs no sync."""

    loss: Tensor
    """float64 scalar: sum of weight * cross-entropy"""
    hits_B: Tensor
    """int64[B]: labels at slot k that the drafter ranks first"""
    labels_B: NDArray[np.int64]
    """int64[B]: labels at slot k with a nonzero weight"""
    weight: float
    """sum of the labels' weights"""

    @staticmethod
    def zero(block_size: int, device: torch.device) -> LossSums:
        return LossSums(
            loss=torch.zeros((), dtype=torch.float64, device=device),
            hits_B=torch.zeros(block_size, dtype=torch.int64, device=device),
            labels_B=np.zeros(block_size, dtype=np.int64),
            weight=0.0,
        )

    def __add__(self, other: LossSums) -> LossSums:
        return LossSums(
            loss=self.loss + other.loss,
            hits_B=self.hits_B + other.hits_B,
            labels_B=self.labels_B + other.labels_B,
            weight=self.weight + other.weight,
        )


def add_gradient(drafter: Drafter, head: TargetHead, batch: FeatureBatch, *, anchor_budget: int) -> LossSums:
    """Add the gradient of a micro-batch's loss sum to the drafter's ``.grad``; return the sums.

    The context is encoded once. The blocks run in chunks of at most ``anchor_budget`` block tokens, each
    with a backward pass of its own, so activation memory is bounded by the chunk. A micro-batch without
    blocks costs nothing and adds nothing.
    """
    total = LossSums.zero(drafter.shape.block_size, batch.features_TF.device)
    if not len(batch.slots):
        return total
    context = drafter.encode(batch.features_TF, batch.offsets_D)
    leaves = context.detached()
    for chunk in chunks(batch.slots, anchor_budget // drafter.shape.block_size):
        sums = _chunk_loss(drafter, head, leaves, chunk)
        torch.autograd.backward(sums.loss)
        total = total + replace(sums, loss=sums.loss.detach())
    context.backward(leaves)
    return total


@torch.no_grad()
def loss_only(drafter: Drafter, head: TargetHead, batch: FeatureBatch, *, anchor_budget: int) -> LossSums:
    """The same sums without a gradient, for held-out samples."""
    total = LossSums.zero(drafter.shape.block_size, batch.features_TF.device)
    if not len(batch.slots):
        return total
    context = drafter.encode(batch.features_TF, batch.offsets_D)
    for chunk in chunks(batch.slots, anchor_budget // drafter.shape.block_size):
        total = total + _chunk_loss(drafter, head, context, chunk)
    return total


def chunks(slots: AnchorSlots, size: int) -> Iterator[AnchorSlots]:
    """Consecutive runs of at most ``size`` blocks."""
    for start in range(0, len(slots), size):
        part = slice(start, start + size)
        yield AnchorSlots(
            slots.document_N[part],
            slots.position_N[part],
            slots.token_N[part],
            slots.label_NB[part],
            slots.weight_NB[part],
        )


def _chunk_loss(drafter: Drafter, head: TargetHead, context: Context, slots: AnchorSlots) -> LossSums:
    device = head.head_VH.device
    partition = group_blocks(slots.document_N, slots.position_N, context.offsets_D, device)
    hidden_NBH = drafter.draft(
        context,
        partition,
        torch.from_numpy(slots.position_N).to(device),
        torch.from_numpy(slots.token_N).to(device),
        head,
    )
    # Only labels that count reach the head: its product is the dearest of the whole drafter.
    labelled = np.flatnonzero(slots.weight_NB.ravel())
    weight_L = slots.weight_NB.ravel()[labelled]
    slot_L = labelled % drafter.shape.block_size
    loss, _, hit_L = weighted_cross_entropy(
        hidden_NBH.flatten(0, 1).index_select(0, torch.from_numpy(labelled).to(device)),
        head.head_VH,
        torch.from_numpy(slots.label_NB.ravel()[labelled]).to(device),
        torch.from_numpy(weight_L).to(device),
    )
    hits_B = torch.zeros(drafter.shape.block_size, dtype=torch.int64, device=device)
    hits_B.index_add_(0, torch.from_numpy(slot_L).to(device), hit_L.long())
    return LossSums(
        loss=loss,
        hits_B=hits_B,
        labels_B=np.bincount(slot_L, minlength=drafter.shape.block_size),
        weight=float(weight_L.sum(dtype=np.float64)),
    )
