"""What a drafter is trained for: a sum over the labels of its blocks, behind one small interface.

Sums, because the loss of a window is one division at its end: (sum of weighted losses) / (sum of
weights). A mean here would make the objective depend on how the window was cut into micro-batches.

The parts that objectives of this family differ in are apart: which token a slot predicts
(:mod:`dflash.models.labels`, before the drafter runs), how hidden states become logits (a head), what a
label counts (:mod:`dflash.models.position_weights`), and the loss that puts them together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dflash.config import DrafterSettings
from dflash.models.chunked import Chunk, sum_over_chunks, whole_blocks
from dflash.models.position_weights import ExponentialDecay, PositionWeights

ROWS_PER_CHUNK = 512
"""Labels whose logits exist at one time: 311 MB of fp32 for a vocabulary of 151,936, 4 MB for 2,048."""

Head = Callable[[Tensor, Tensor], Tensor]
"""From hidden states [L, H] and the target's head [V, H] to logits [L, V]."""


@dataclass(frozen=True)
class BlockSums:
    """What a loss says of N blocks. Device tensors, so that nobody waits for them."""

    loss: Tensor
    """float64 scalar, the sum of weight * loss, differentiable in the hidden states"""
    weight: Tensor
    """float64 scalar, the sum of the weights"""
    hit_NB: Tensor
    """bool[N, B], whether the most likely token is the slot's label"""


class BlockLoss(Protocol):
    """A training objective. It sees whole blocks, and gives the same sums for any partition of them."""

    def __call__(
        self, hidden_NBH: Tensor, label_NB: NDArray[np.int64], labelled_NB: NDArray[np.bool_], head_VH: Tensor
    ) -> BlockSums:
        """Sums over the labelled slots.

        Args:
            hidden_NBH: the drafter's output, after its final norm.
            label_NB: int64[N, B], the token that each slot is to predict.
            labelled_NB: bool[N, B], where there is one.
            head_VH: the target's head, frozen.
        """
        ...


def target_logits(hidden_LH: Tensor, head_VH: Tensor) -> Tensor:
    """The target's own head in its own type, as a server takes this product."""
    return hidden_LH.to(head_VH.dtype) @ head_VH.T


@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy of the labels, in fp32 or better, and never more than a chunk's logits at a time."""

    weights: PositionWeights
    head: Head = target_logits
    rows_per_chunk: int = ROWS_PER_CHUNK

    def __call__(
        self, hidden_NBH: Tensor, label_NB: NDArray[np.int64], labelled_NB: NDArray[np.bool_], head_VH: Tensor
    ) -> BlockSums:
        device, block = hidden_NBH.device, labelled_NB.shape[1]
        # Only slots with a label reach the head: its product is the dearest of the whole drafter.
        labelled = np.flatnonzero(labelled_NB)
        label_L = torch.from_numpy(label_NB.ravel()[labelled]).to(device)
        place_L = torch.from_numpy(labelled).to(device)
        all_labelled_NB = torch.from_numpy(labelled_NB).to(device)
        weight = torch.zeros((), dtype=torch.float64, device=device)
        hit = torch.zeros(labelled_NB.size, dtype=torch.bool, device=device)

        def loss_of_chunk(hidden_LH: Tensor, chunk: Chunk) -> Tensor:
            losses, hits = token_cross_entropy(self.head(hidden_LH, head_VH), label_L[chunk.labels])
            hit[place_L[chunk.labels]] = hits
            labelled_nB = all_labelled_NB[chunk.blocks]
            within = place_L[chunk.labels] - chunk.blocks.start * block
            log_p_nB = losses.new_zeros(labelled_nB.shape)
            log_p_nB.view(-1)[within] = -losses.detach()
            weights = self.weights(labelled_nB, log_p_nB).flatten()[within].double()
            weight.add_(weights.sum())
            return (losses.double() * weights).sum()

        hidden_LH = hidden_NBH.flatten(0, 1).index_select(0, place_L)
        chunks = whole_blocks(labelled_NB, self.rows_per_chunk)
        loss = sum_over_chunks(loss_of_chunk, hidden_LH, chunks)
        return BlockSums(loss, weight, hit.view(-1, block))


def token_cross_entropy(logits_LV: Tensor, label_L: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy [L] of each label in fp32 or better, and bool[L] whether it is the most likely token.

    Differentiable once: the memory of the probabilities becomes that of the gradient.
    """
    return _TokenCrossEntropy.apply(logits_LV, label_L)  # type: ignore[no-untyped-call, no-any-return]


class _TokenCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_LV: Tensor, label_L: Tensor) -> tuple[Tensor, Tensor]:
        ctx.dtype = logits_LV.dtype
        logits_LV = logits_LV.to(torch.promote_types(logits_LV.dtype, torch.float32))
        top_L, best_L = logits_LV.max(-1)
        p_LV = logits_LV.softmax(-1)
        # The log-sum-exp is known from the largest probability, which cannot underflow, so the logarithms
        # of all the others are never taken.
        below_top_L = top_L - logits_LV.gather(-1, label_L[:, None]).squeeze(-1)
        losses_L = below_top_L - p_LV.amax(-1).log()
        hits_L = best_L == label_L
        ctx.save_for_backward(p_LV, label_L)
        ctx.mark_non_differentiable(hits_L)
        return losses_L, hits_L

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        residual_LV, label_L = ctx.saved_tensors
        label = label_L[:, None]
        residual_LV.scatter_add_(-1, label, torch.full_like(label, -1, dtype=residual_LV.dtype))
        residual_LV *= grads[0][:, None]
        return residual_LV.to(ctx.dtype), None


def block_loss(settings: DrafterSettings) -> BlockLoss:
    """The loss that the settings ask for; ``cross_entropy`` is the one there is."""
    return CrossEntropy(ExponentialDecay(settings.gamma))
