"""The loops of `packing` that numpy cannot do, compiled by numba and kept in its cache on disk.

Importing this costs half a second: only the functions that run a kernel do. What they run takes the lengths
in order, int64[n], and returns the number of the micro-batch that each is put into, int64[n], from 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba
import numpy as np

from dflash.batching.plan import LARGEST, IntArray

P = ParamSpec("P")
R = TypeVar("R")

_PLACE = 2**32
"""A place in a window is below this, and stands in the low bits of a sort key."""


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """`function` in machine code, compiled at its first call."""
    try:
        return cast("Callable[P, R]", numba.njit(cache=True)(function))
    except RuntimeError:  # neither this folder nor the user's cache can be written to
        return cast("Callable[P, R]", numba.njit(function))


@compiled
def first_fit(tokens: IntArray, token_budget: int, most: int) -> IntArray:
    """Each into the first micro-batch with room, found in a tree of the most room that is left below.

    most: micro-batches that are enough.
    """
    leaves = 1
    while leaves < most:
        leaves *= 2
    room = np.full(2 * leaves, token_budget)
    batch_of = np.empty(len(tokens), np.int64)
    for place, length in enumerate(tokens):
        node = 1
        while node < leaves:
            node *= 2
            if room[node] < length:
                node += 1
        batch_of[place] = node - leaves
        room[node] -= length
        while node > 1:
            node //= 2
            room[node] = max(room[2 * node], room[2 * node + 1])
    return batch_of


@compiled
def sorted_windows(tokens: IntArray, token_budget: int, window_size: int) -> IntArray:
    """Windows of the most samples in order that make `window_size` micro-batches when sorted."""
    batch_of = np.empty(len(tokens), np.int64)
    start, first, most = 0, 0, 2 * window_size
    while start < len(tokens):
        # Sorted once, the candidates serve every attempt: it passes over those that come too late.
        while True:
            most = min(most, len(tokens) - start)
            keys = _sorted_keys(tokens[start : start + most])
            window = batch_of[start : start + most]
            if start + most == len(tokens) or _fill(keys, most, token_budget, window) > window_size:
                break
            most *= 2
        fits, fails = min(window_size, most), most + 1
        while fails - fits > 1:
            count = (fits + fails) // 2
            if _fill(keys, count, token_budget, window) <= window_size:
                fits = count
            else:
                fails = count
        batches = _fill(keys, fits, token_budget, window)
        batch_of[start : start + fits] += first
        start, first, most = start + fits, first + batches, 2 * fits
    return batch_of


@compiled
def longest_first_windows(tokens: IntArray, token_budget: int, window_size: int) -> IntArray:
    """Windows of so many samples in order that one more would not fit, dealt out longest first."""
    batch_of = np.empty(len(tokens), np.int64)
    start = first = 0
    while start < len(tokens):
        most = _within(tokens[start:], token_budget * window_size)
        keys = _sorted_keys(LARGEST - tokens[start : start + most])
        window = batch_of[start : start + most]
        # Close to `most` as a rule: steps of 1, 2, 4, ... down from there, then halving.
        fits, fails, step = most, most + 1, 1
        while not _deal(keys, fits, token_budget, window_size, window):
            fails = fits
            fits = max(fits - step, min(window_size, most))  # one to each always fits
            step *= 2
        while fails - fits > 1:
            count = (fits + fails) // 2
            if _deal(keys, count, token_budget, window_size, window):
                fits = count
            else:
                fails = count
        batches = window_size
        if start + fits == len(tokens):  # the last window takes as few micro-batches as will do
            batches = -(-tokens[start:].sum() // token_budget)
        while not _deal(keys, fits, token_budget, batches, window):
            batches += 1
        batch_of[start : start + fits] += first
        start, first = start + fits, first + batches
    return batch_of


@compiled
def _within(tokens: IntArray, most: int) -> int:
    """How many, from the first on, have at most `most` tokens together."""
    total = 0
    for count, length in enumerate(tokens):
        total += length
        if total > most:
            return count
    return len(tokens)


@compiled
def _sorted_keys(values: IntArray) -> IntArray:
    """Values in the high bits and places in the low ones, ascending."""
    return np.sort(values * _PLACE + np.arange(len(values)))


@compiled
def _fill(keys: IntArray, count: int, token_budget: int, batch_of: IntArray) -> int:
    """Fill padded micro-batches greedily with the places below `count`; how many it takes."""
    batches = rows = 0
    for key in keys:
        place = key % _PLACE
        if place >= count:
            continue
        rows += 1
        if batches == 0 or rows * (key // _PLACE) > token_budget:
            batches += 1
            rows = 1
        batch_of[place] = batches - 1
    return batches


@compiled
def _deal(keys: IntArray, count: int, token_budget: int, batches: int, batch_of: IntArray) -> bool:
    """Each of the places below `count` to the least loaded micro-batch; False once one is over budget."""
    # A heap of load x batches + number: the least loaded comes first, the first among equals.
    heap = np.arange(batches)
    for key in keys:
        place = key % _PLACE
        if place >= count:
            continue
        loaded = heap[0] + (LARGEST - key // _PLACE) * batches
        if loaded >= (token_budget + 1) * batches:
            return False
        batch_of[place] = loaded % batches
        node, child = 0, 1
        while child < batches:
            if child + 1 < batches and heap[child + 1] < heap[child]:
                child += 1
            if heap[child] > loaded:
                break
            heap[node] = heap[child]
            node, child = child, 2 * child + 1
        heap[node] = loaded
    return True
