"""Arrays cut into segments by offsets."""

from __future__ import annotations

import numpy as np

from dflash.batching.plan import IntArray


def per_segment(reduction: np.ufunc, values: IntArray, offsets: IntArray) -> IntArray:
    """Reduce each segment of values: int64[s] for offsets int64[s + 1], which start at 0.

    An empty segment gives 0, where reduceat alone would give a neighbour.
    """
    result = np.zeros(len(offsets) - 1, dtype=np.int64)
    filled = np.flatnonzero(np.diff(offsets))
    if len(filled):
        result[filled] = reduction.reduceat(values, offsets[filled])
    return result


def segment_of(offsets: IntArray) -> IntArray:
    """The number of the segment that each element lies in: int64[offsets[-1]]."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def grouped(values: IntArray, group: IntArray, groups: int | None = None) -> tuple[IntArray, IntArray]:
    """Values int64[m] by their group (int64[m], from 0), in their order within each, and the groups' offsets.

    Offsets are int64[g + 1]; g is `groups`, or one more than the largest group if not given.
    """
    sizes = np.bincount(group, minlength=groups or 0)
    # Small integers are sorted by radix, in a tenth of the time.
    order = np.argsort(group.astype(np.min_scalar_type(len(sizes))), kind="stable")
    return values[order], np.concatenate([[0], np.cumsum(sizes)])
