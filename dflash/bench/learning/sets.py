"""Which samples a learning trial trains on, and which its gradients are measured on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dflash.config import Config
from dflash.data.store import TokenStore
from dflash.errors import UsageError

Int64 = NDArray[np.int64]

_STREAM = 2**21  # above those of strategies and windows


def learning_sets(store: TokenStore, config: Config, tokens: int, pool_tokens: int) -> tuple[Int64, Int64]:
    """Rows to train on and rows to measure gradients on, ascending, of about so many real tokens each.

    Drawn at random by ``config.training.seed``, so that every strategy meets the same samples, whatever its
    order. They are disjoint where the store has enough training samples.

    Raises:
        UsageError: no training sample is within the token budget.
    """
    rows = store.rows(held_out=False)
    if config.data.overlong == "drop":
        rows = rows[store.lengths[rows] <= config.batching.token_budget]
    if not len(rows):
        raise UsageError(f"{store.path} has no sample to train on")
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([config.training.seed, 0, _STREAM])))
    shuffled = rng.permutation(rows)
    return _first(store, shuffled, tokens), _first(store, shuffled[::-1], pool_tokens)


def _first(store: TokenStore, rows: Int64, tokens: int) -> Int64:
    count = int(np.searchsorted(np.cumsum(store.lengths[rows]), tokens)) + 1
    return np.sort(rows[:count])


def anchors_of(store: TokenStore, rows: Int64, config: Config) -> Int64:
    """Blocks that each row is trained with, int64[n]; exact where no row is cut."""
    settings = config.drafter
    return np.minimum(settings.max_anchors, -(-store.valid_anchors[rows] // settings.anchor_stride))
