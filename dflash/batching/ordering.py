"""Orders of micro-batches that decide how groups of them, such as buckets, meet in windows."""

from __future__ import annotations

import numpy as np

from dflash.batching.plan import IntArray
from dflash.batching.segments import grouped


def stratified(group: IntArray, rng: np.random.Generator) -> IntArray:
    """A random order that spreads each group evenly over the whole: a permutation int64[b].

    group: int64[b], from 0. Each of a group's N micro-batches, in random order, falls into one of N equal
    parts of the epoch, at random within it. So any stretch has every group in proportion, to about one.
    """
    shuffled, offsets = _shuffled_groups(group, rng)
    sizes = np.diff(offsets)
    part = np.arange(len(group)) - np.repeat(offsets[:-1], sizes)
    place = (part + rng.random(len(group))) / np.repeat(sizes, sizes)
    return shuffled[np.argsort(place, kind="stable")]


def synced(group: IntArray, window_size: int, rng: np.random.Generator) -> IntArray:
    """A random order whose windows are of one group each, where possible: a permutation int64[b].

    group: int64[b], from 0. What is left of each group when its whole windows are taken fills windows of
    neighbouring groups. All windows are then shuffled; what fills none stays last.
    """
    shuffled, offsets = _shuffled_groups(group, rng)
    sizes = np.diff(offsets)
    place = np.arange(len(group)) - np.repeat(offsets[:-1], sizes)
    left = place >= np.repeat(sizes - sizes % window_size, sizes)
    ordered = np.concatenate([shuffled[~left], shuffled[left]])
    whole = len(group) - len(group) % window_size
    by_window = ordered[:whole].reshape(-1, window_size)
    return np.concatenate([by_window[rng.permutation(len(by_window))].ravel(), ordered[whole:]])


def _shuffled_groups(group: IntArray, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """All micro-batches, shuffled within each group, and the groups' offsets."""
    shuffled = rng.permutation(len(group))
    return grouped(shuffled, group[shuffled])
