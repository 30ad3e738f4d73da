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
from dflash.models.drafter import Context, Drafter, TargetHead
from dflash.models.features import FeatureBatch
from dflash.models.loss import BlockLoss, BlockSums


@dataclass(frozen=True)
class LossSums:
    """Sums over the labels of one or more micro-batches. Device tensors, so that adding needs no sync."""

    loss: Tensor
    """float64 scalar: sum of weight * cross-entropy"""
    hits_B: Tensor
    """int64[B]: labels at slot k that the drafter ranks first"""
    labels_B: NDArray[np.int64]
    """int64[B]: labels at slot k"""
    weight: Tensor
    """float64 scalar: sum of the labels' weights"""

    @staticmethod
    def zero(block_size: int, device: torch.device) -> LossSums:
        return LossSums(
            loss=torch.zeros((), dtype=torch.float64, device=device),
            hits_B=torch.zeros(block_size, dtype=torch.int64, device=device),
            labels_B=np.zeros(block_size, dtype=np.int64),
            weight=torch.zeros((), dtype=torch.float64, device=device),
        )

    def __add__(self, other: LossSums) -> LossSums:
        return LossSums(
            loss=self.loss + other.loss,
            hits_B=self.hits_B + other.hits_B,
            labels_B=self.labels_B + other.labels_B,
            weight=self.weight + other.weight,
        )


def add_gradient(
    drafter: Drafter, head: TargetHead, batch: FeatureBatch, *, loss: BlockLoss, anchor_budget: int
) -> LossSums:
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
        sums = _chunk_loss(drafter, head, loss, leaves, chunk)
        torch.autograd.backward(sums.loss)
        total = total + replace(sums, loss=sums.loss.detach())
    context.backward(leaves)
    return total


@torch.no_grad()
def loss_only(
    drafter: Drafter, head: TargetHead, batch: FeatureBatch, *, loss: BlockLoss, anchor_budget: int
) -> LossSums:
    """The same sums without a gradient, for held-out samples."""
    total = LossSums.zero(drafter.shape.block_size, batch.features_TF.device)
    if not len(batch.slots):
        return total
    context = drafter.encode(batch.features_TF, batch.offsets_D)
    for chunk in chunks(batch.slots, anchor_budget // drafter.shape.block_size):
        total = total + _chunk_loss(drafter, head, loss, context, chunk)
    return total


@torch.no_grad()
def accepted_lengths(
    drafter: Drafter, head: TargetHead, batch: FeatureBatch, *, loss: BlockLoss, anchor_budget: int
) -> NDArray[np.int64]:
    """int64[N]: the teacher-forced accepted length of every block of a micro-batch, 1..B.

    One (for the token that a target would put behind them) plus the leading slots whose label the drafter
    ranks first; a slot without a supervised label ends the count.
    """
    if not len(batch.slots):
        return np.zeros(0, dtype=np.int64)
    block = drafter.shape.block_size
    context = drafter.encode(batch.features_TF, batch.offsets_D)
    lengths = []
    for chunk in chunks(batch.slots, anchor_budget // block):
        hit_NB = _block_sums(drafter, head, loss, context, chunk).hit_NB.cpu().numpy()
        lengths.append(1 + hit_NB[:, 1:].cumprod(axis=1).sum(axis=1))
    return np.concatenate(lengths)


def chunks(slots: AnchorSlots, size: int) -> Iterator[AnchorSlots]:
    """Consecutive runs of at most ``size`` blocks."""
    for start in range(0, len(slots), size):
        yield slots.take(slice(start, start + size))


def _chunk_loss(
    drafter: Drafter, head: TargetHead, loss: BlockLoss, context: Context, slots: AnchorSlots
) -> LossSums:
    sums = _block_sums(drafter, head, loss, context, slots)
    return LossSums(sums.loss, sums.hit_NB.sum(0), slots.labelled_NB.sum(0), sums.weight)


def _block_sums(
    drafter: Drafter, head: TargetHead, loss: BlockLoss, context: Context, slots: AnchorSlots
) -> BlockSums:
    device = head.head_VH.device
    hidden_NBH = drafter.draft(
        context,
        drafter.prepare_attention(slots.document_N, slots.position_N, context.offsets_D),
        torch.from_numpy(slots.position_N).to(device),
        torch.from_numpy(slots.token_N).to(device),
        head,
    )
    return loss(hidden_NBH, slots.label_NB, slots.labelled_NB, head.head_VH)
