"""Which samples are kept, what is cut from them, and which are held out. Nothing goes without an entry."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from dflash.data.conversation import Sample
from dflash.data.documents import Row

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HELD_OUT_SALT = b"dflash held out"
HELD_OUT_SHARE = 0.02


class Outcome(msgspec.Struct, frozen=True):
    """What became of one row: a sample, or the reason why there is none.

    ``tokens``     of the sample before anything was cut
    ``dropped``    the reason, or None for a sample that is kept
    ``cut``        the reason why a kept sample is less than its row, or None
    ``detail``     of a bad row, what is wrong with it
    ``input_ids``  int32 as bytes, ``loss_mask`` uint8 as bytes; empty unless kept
    """

    row: int
    name: str
    where: str
    tokens: int = 0
    dropped: str | None = None
    cut: str | None = None
    detail: str | None = None
    held_out: bool = False
    input_ids: bytes = b""
    loss_mask: bytes = b""

    @property
    def kept_tokens(self) -> int:
        return len(self.loss_mask)


class Rules(msgspec.Struct, frozen=True):
    """What a sample must be.

    ``max_tokens``      the most tokens, None for any number; longer ones are cut at the end, or dropped
    ``min_supervised``  the fewest supervised tokens, after the cut
    ``held_out``        share of the samples that is held out; None: the share of HELD_OUT_SHARE, and what is
                        held out in a token store stays so
    ``mask_id``         the token that no sample may hold, None if there is none
    """

    max_tokens: int | None = None
    overlong: Literal["cut", "drop"] = "cut"
    min_supervised: int = 2
    held_out: float | None = None
    mask_id: int | None = None

    def judge(self, row: Row, sample: Sample, held_out: bool | None = None) -> Outcome:
        """Keep the sample of ``row``, cut or whole, or drop it. ``held_out`` is what its token store says."""
        ids, mask = np.array(sample.ids, np.int32), np.array(sample.mask, np.uint8)
        cut, too_long = sample.cut, self.max_tokens is not None and len(ids) > self.max_tokens
        dropped = None
        if len(ids) == 0:
            dropped = sample.cut or "no_token"
        elif (ids == self.mask_id).any():
            # A target has never seen it in text, and for the drafter it means that nothing stands here.
            dropped = "mask_token"
        elif too_long and self.overlong == "drop":
            dropped = "too_long"
        else:
            if too_long:
                ids, mask, cut = ids[: self.max_tokens], mask[: self.max_tokens], cut or "too_long"
            if np.count_nonzero(mask) < self.min_supervised:
                dropped = "too_few_supervised"
            elif not (mask[:-1] & mask[1:]).any():
                dropped = "no_valid_anchor"
        found = Outcome(row.number, row.name, row.where, len(sample.ids))
        if dropped:
            return msgspec.structs.replace(found, dropped=dropped)
        return msgspec.structs.replace(
            found,
            cut=cut,
            held_out=self._is_held_out(ids, mask, held_out),
            input_ids=ids.tobytes(),
            loss_mask=mask.tobytes(),
        )

    def _is_held_out(self, ids: NDArray[np.int32], mask: NDArray[np.uint8], in_store: bool | None) -> bool:
        """By the tokens before the first supervised one (of a document without such: all), so that equal
        prompts are on one side, whatever else is in the inputs and in whatever order.
        """
        if self.held_out is None and in_store is not None:
            return in_store
        share = HELD_OUT_SHARE if self.held_out is None else self.held_out
        prompt = ids[: int(mask.argmax())] if not mask[0] else ids
        digest = hashlib.sha256(_HELD_OUT_SALT + prompt.astype("<i4").tobytes()).digest()
        return int.from_bytes(digest[:8]) < share * 2**64


def bad(row: Row, problem: str) -> Outcome:
    """The outcome of a row that cannot be read."""
    return Outcome(row.number, row.name, row.where, dropped="bad_row", detail=problem)
