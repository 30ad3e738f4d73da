"""Filling micro-batches, for all strategies."""

from __future__ import annotations

import numpy as np

from dflash.batching.plan import IntArray


def greedy(lengths: IntArray, order: IntArray, token_budget: int) -> IntArray:
    """Cut `order` (int64[m], rows of lengths) into padded micro-batches, each as long as fits the budget.

    A micro-batch costs rows x its own longest sample. No sample may exceed the budget alone.
    Returns batch_offsets, int64[b + 1] into order.
    """
    # The loop is sequential and runs once per epoch. A million samples take about 0.15 s here, against
    # about 0.9 s for importing numba and loading one cached kernel; the buffer makes no list of them.
    cuts = [0] if len(order) else []
    rows = longest = 0
    for position, length in enumerate(lengths[order].data):
        rows += 1
        if length > longest:
            longest = length
        if rows * longest > token_budget:
            cuts.append(position)
            rows, longest = 1, length
    return np.array([*cuts, len(order)], dtype=np.int64)
