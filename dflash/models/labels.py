"""Which token each slot of a block is to predict, and which slots have none."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

LABEL_OFFSET = 0
"""Slot k predicts the token at anchor + k: the slot that holds the anchor has nothing to predict.
Variants that draft from the anchor's own slot have an offset of one."""


def block_labels(
    tokens_T: Int64,
    supervised_T: NDArray[np.bool_],
    start_N: Int64,
    end_N: Int64,
    position_N: Int64,
    block_size: int,
    offset: int = LABEL_OFFSET,
) -> tuple[Int64, NDArray[np.bool_]]:
    """Labels of N blocks over documents that stand end to end.

    A slot has a label where the token is after the anchor, in the anchor's own document and supervised.

    Args:
        tokens_T: int64[T], all documents' tokens.
        supervised_T: bool[T].
        start_N: where in T each block's document starts; ``end_N`` where it ends.
        position_N: the anchor's position in its document.

    Returns:
        int64[N, B] label, 0 where the document has ended; bool[N, B] whether the slot has a label.
    """
    ahead_B = np.arange(block_size) + offset
    place_NB = (start_N + position_N)[:, None] + ahead_B
    exists_NB = place_NB < end_N[:, None]
    place_NB = np.where(exists_NB, place_NB, 0)
    label_NB = np.where(exists_NB, tokens_T[place_NB], 0)
    return label_NB, exists_NB & supervised_T[place_NB] & (ahead_B > 0)
