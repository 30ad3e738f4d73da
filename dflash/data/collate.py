"""From rows of a token store to the arrays of one padded micro-batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dflash.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dflash.data.store import TokenStore


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One micro-batch in the padded layout: R samples, right-padded to the longest, S tokens.

    ``input_ids``  int64 [R, S], the pad id after a row's length
    ``loss_mask``  uint8 [R, S], 1 on supervised tokens, 0 on padding
    ``lengths``    int64 [R], real tokens of each row
    ``rows``       int64 [R], rows of the token store
    """

    input_ids: NDArray[np.int64]
    loss_mask: NDArray[np.uint8]
    lengths: NDArray[np.int64]
    rows: NDArray[np.int64]


def collate_padded(store: TokenStore, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> Batch:
    """Read the first ``lengths[i]`` tokens of each ``rows[i]`` into one micro-batch; R = 0 gives [0, 0].

    Raises UsageError if a length is below 1 or above what the store holds.
    """
    rows, lengths = np.asarray(rows, np.int64), np.asarray(lengths, np.int64)
    wrong = np.flatnonzero((lengths < 1) | (lengths > store.lengths[rows]))
    if len(wrong):
        row, length = rows[wrong[0]], lengths[wrong[0]]
        raise UsageError(
            f"{store.path}: row {row} has {store.lengths[row]} tokens, {length} were asked for; "
            "plan with the lengths of this store"
        )
    shape = len(rows), int(lengths.max(initial=0))
    input_ids = np.full(shape, store.pad_id, np.int64)
    loss_mask = np.zeros(shape, np.uint8)
    # One slice per row: twice as fast as one gather with computed indices.
    for i, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        ids, mask = store.sample(row)
        input_ids[i, :length] = ids[:length]
        loss_mask[i, :length] = mask[:length]
    return Batch(input_ids, loss_mask, lengths, rows)
