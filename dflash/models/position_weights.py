"""How much the label of each slot counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class PositionWeights(Protocol):
    """A rule that weighs the labels of whole blocks. Called without gradient, whatever it computes."""

    def __call__(self, labelled_NB: Tensor, log_p_NB: Tensor) -> Tensor:
        """Weights [N, B] in the type of ``log_p_NB``, zero where a slot has no label.

        A block's weights may depend on its own rows only, so that no partition of the blocks shows.

        Args:
            labelled_NB: bool[N, B].
            log_p_NB: log-probabilities that the drafter gives the labels, fp32 or better; 0 without a label.
        """
        ...


@dataclass(frozen=True)
class ExponentialDecay:
    """Weight ``exp(-(k - 1) / gamma)`` of slot k: an early mistake makes all later slots worthless.

    Source: DFlash paper (arXiv 2602.06036), position-decay loss; gamma 7, 5, 4 for blocks of 16, 10, 8.
    """

    gamma: float

    def __call__(self, labelled_NB: Tensor, log_p_NB: Tensor) -> Tensor:
        slot_B = torch.arange(log_p_NB.shape[1], dtype=log_p_NB.dtype, device=log_p_NB.device)
        return torch.where(labelled_NB, ((1 - slot_B) / self.gamma).exp(), 0)
