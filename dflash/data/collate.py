"""From rows of a token store to the arrays of one micro-batch, in either layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from dflash.errors import DflashError, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dflash.data.store import TokenStore

Documents = list[tuple["NDArray[np.int32]", "NDArray[np.uint8]"]]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One micro-batch of D samples: padded to [R, S] = [D, longest], or packed end to end as [1, T].

    ``input_ids``  int64 [R, S], the pad id after a row's length in the padded layout
    ``loss_mask``  uint8 [R, S], 1 on supervised tokens, 0 on padding
    ``lengths``    int64 [D], real tokens of each sample
    ``rows``       int64 [D], rows of the token store
    """

    layout: Literal["padded", "packed"]
    input_ids: NDArray[np.int64]
    loss_mask: NDArray[np.uint8]
    lengths: NDArray[np.int64]
    rows: NDArray[np.int64]

    def documents(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint8]]]:
        """Token ids and loss mask of each sample, without padding: views."""
        ends = np.cumsum(self.lengths)
        for document, (length, end) in enumerate(zip(self.lengths.tolist(), ends.tolist(), strict=True)):
            row, start = (document, 0) if self.layout == "padded" else (0, end - length)
            yield self.input_ids[row, start : start + length], self.loss_mask[row, start : start + length]


def collate_padded(store: TokenStore, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> Batch:
    """Read the first ``lengths[i]`` tokens of each ``rows[i]`` into a padded micro-batch; D = 0 gives [0, 0].

    Raises UsageError if a length is below 1 or above what the store holds, DflashError if a row is cut short.
    """
    rows, lengths, documents = _read(store, rows, lengths)
    shape = len(rows), int(lengths.max(initial=0))
    input_ids = np.full(shape, store.pad_id, np.int64)
    loss_mask = np.zeros(shape, np.uint8)
    # One slice per row: twice as fast as one gather with computed indices.
    for i, (ids, mask) in enumerate(documents):
        input_ids[i, : len(ids)] = ids
        loss_mask[i, : len(mask)] = mask
    return Batch("padded", input_ids, loss_mask, lengths, rows)


def collate_packed(store: TokenStore, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> Batch:
    """The same samples end to end in one row; D = 0 gives [1, 0]. Raises as :func:`collate_padded` does."""
    rows, lengths, documents = _read(store, rows, lengths)
    input_ids = np.concatenate([np.empty(0, np.int64), *(ids for ids, _ in documents)])
    loss_mask = np.concatenate([np.empty(0, np.uint8), *(mask for _, mask in documents)])
    return Batch("packed", input_ids[None], loss_mask[None], lengths, rows)


def _read(
    store: TokenStore, rows: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], Documents]:
    rows, lengths = np.asarray(rows, np.int64), np.asarray(lengths, np.int64)
    wrong = np.flatnonzero((lengths < 1) | (lengths > store.lengths[rows]))
    if len(wrong):
        row, length = rows[wrong[0]], lengths[wrong[0]]
        raise UsageError(
            f"{store.path}: row {row} has {store.lengths[row]} tokens, {length} were asked for; "
            "plan with the lengths of this store"
        )
    samples = zip(map(store.sample, rows.tolist()), lengths.tolist(), strict=True)
    documents = [(ids[:length], mask[:length]) for (ids, mask), length in samples]
    for row, length, (ids, _) in zip(rows, lengths, documents, strict=True):
        if len(ids) != length:
            raise DflashError(
                f"{store.path}: row {row} ends after {len(ids)} of {length} tokens; the file has changed or "
                "is damaged, prepare the data again"
            )
    return rows, lengths, documents
