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
    shortest: int = 256,
    longest: int = 1024,
    blind: int = 64,
    held_out: float = 0.05,
    seed: int = 0,
) -> TokenStore:
    """Write the text of ``source``, its samples in random order, cut at random lengths, and open it.

    A piece's labels must not tell its length. They would if early positions, which see little context, were a
    larger share of short pieces: the first ``blind`` tokens are not supervised, and no piece is much shorter
    than what the target looks back at. They would if labels were not in proportion to tokens: train with
    ``drafter.max_anchors`` of ``longest / drafter.anchor_stride`` or more.

    Args:
        shortest, longest: tokens of a piece, drawn evenly on a logarithmic scale.
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
            mask = np.ones(length, np.uint8)
            mask[:blind] = 0
            kept_back = bool(rng.random() < held_out)
            yield StoreSample(text[start : start + length], mask, f"piece {number}", kept_back)
            start, number = start + length, number + 1

    write_store(path, pieces(), source.metadata)
    return TokenStore.open(path)
