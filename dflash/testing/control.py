"""A corpus whose lengths carry no content: on it, no order of the lengths may cost a strategy anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dflash.data.store import StoreSample, TokenStore, write_store


def write_control(
    path: Path,
    source: TokenStore,
    *,
    shortest: int = 128,
    longest: int = 256,
    blind: int = 32,
    held_out: float = 0.05,
    seed: int = 0,
) -> TokenStore:
    """Write the text of ``source``, its samples in random order, cut at random lengths, and open it.

    Supervised are the tokens ``blind`` to ``shortest`` of every piece. What a label sees comes before it, so
    no gradient depends on the length of its piece: what follows only takes place. A label in a window of long
    pieces costs more tokens than one of short pieces, which makes the design effect of a plan that sorts
    lengths E[L^2] / E[L]^2, 1.04 with pieces between ``shortest`` and twice that, and that of one which mixes
    them 1.

    Args:
        shortest, longest: tokens of a piece, drawn evenly on a logarithmic scale.
        blind: tokens at the start, which see little context.
        held_out: share of the pieces that are held out, drawn at random.
    """
    rng = np.random.default_rng(seed)
    text = np.concatenate([source.tokens(row) for row in rng.permutation(len(source))])

    def pieces() -> Iterator[StoreSample]:
        start = number = 0
        while True:
            length = round(float(np.exp(rng.uniform(np.log(shortest), np.log(longest)))))
            if start + length > len(text):
                return
            mask = np.zeros(length, np.uint8)
            mask[blind:shortest] = 1
            kept_back = bool(rng.random() < held_out)
            yield StoreSample(text[start : start + length], mask, f"piece {number}", kept_back)
            start, number = start + length, number + 1

    write_store(path, pieces(), source.metadata)
    return TokenStore.open(path)
