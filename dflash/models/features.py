"""What travels from a target to a drafter: one micro-batch's features and the blocks to train on them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dflash.models.anchors import AnchorSlots


@dataclass(frozen=True)
class FeatureBatch:
    """D documents end to end, without padding, whatever layout the target ran in."""

    features_TF: Tensor
    """[T, K * H]: outputs of K target layers"""
    offsets_D: NDArray[np.int64]
    """int64[D + 1]: where each document starts"""
    rows_D: NDArray[np.int64]
    """store row of each document"""
    slots: AnchorSlots

    @property
    def nbytes(self) -> int:
        """Bytes of the features, which dwarf the rest."""
        return self.features_TF.numel() * self.features_TF.element_size()


def drop_non_finite(batch: FeatureBatch) -> tuple[FeatureBatch, NDArray[np.int64]]:
    """Take out the documents whose features are not all finite, and name their store rows.

    By selection, not by a zero weight: 0 x NaN is NaN, in the loss and in the gradient of ``fc``.
    """
    if bool(torch.isfinite(batch.features_TF).all()):
        return batch, np.zeros(0, dtype=np.int64)
    finite_T = torch.isfinite(batch.features_TF).all(dim=-1).cpu().numpy()
    lengths_D = np.diff(batch.offsets_D)
    document_T = np.repeat(np.arange(len(lengths_D)), lengths_D)
    good_D = np.bincount(document_T[~finite_T], minlength=len(lengths_D)) == 0
    renumbered_D = np.cumsum(good_D) - 1
    slots = batch.slots
    keep_N = good_D[slots.document_N]
    return (
        FeatureBatch(
            features_TF=batch.features_TF[torch.from_numpy(good_D[document_T]).to(batch.features_TF.device)],
            offsets_D=np.concatenate([[0], np.cumsum(lengths_D[good_D])]).astype(np.int64),
            rows_D=batch.rows_D[good_D],
            slots=replace(slots.take(keep_N), document_N=renumbered_D[slots.document_N[keep_N]]),
        ),
        batch.rows_D[~good_D],
    )
