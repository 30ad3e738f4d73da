"""From micro-batches to windows of exactly A x M, and from a window to its drafters."""

from __future__ import annotations

import heapq
from itertools import pairwise
from typing import Literal

import numpy as np

from dflash.batching.plan import LEDGER, BatchPlan, IntArray, Layout, PlanRequest, Reason, ledger
from dflash.errors import PlanError

_ORDER_STREAM = 2**20  # above the strategies' own


def build(
    samples: IntArray,
    batch_offsets: IntArray,
    lengths: IntArray,
    request: PlanRequest,
    *,
    order: Literal["shuffled", "given"] = "shuffled",
    layout: Layout = "padded",
) -> BatchPlan:
    """Order micro-batches, fill windows of exactly A x M of them, and settle the tail.

    samples: int64[m], rows of lengths (int64[n]); batch_offsets: int64[b + 1] into samples.
    The tail's micro-batches, those that fill no window, are split (`spread`), joined by empty ones
    (`pad`) or put into the ledger (`drop`). The result depends on A and M only through A x M.
    """
    if order == "shuffled":
        samples, batch_offsets = _shuffled(samples, batch_offsets, request.rng(_ORDER_STREAM))
    left_out = np.empty(0, LEDGER)
    tail = (len(batch_offsets) - 1) % request.window_size
    if tail and request.tail == "spread":
        batch_offsets = spread(batch_offsets, request.window_size)
    elif tail and request.tail == "pad":
        batch_offsets = np.append(batch_offsets, np.repeat(batch_offsets[-1:], request.window_size - tail))
    elif tail:
        batch_offsets = batch_offsets[:-tail]
        samples, lost = np.split(samples, batch_offsets[-1:])
        left_out = ledger(lost, lengths[lost], Reason.TAIL)
    return BatchPlan(
        samples=samples,
        batch_offsets=batch_offsets,
        window_offsets=np.arange(0, len(batch_offsets), request.window_size, dtype=np.int64),
        layout=layout,
        ids=np.arange(len(lengths), dtype=np.int64),
        ledger=left_out,
    )


def spread(batch_offsets: IntArray, window_size: int) -> IntArray:
    """Split micro-batches of the last window until it is full: int64[b' + 1], b' a multiple of window_size.

    The one with most rows is halved, the first of equals first; the halves stay neighbours, so samples
    keep their order. When all have one row, empty micro-batches fill the window.
    """
    whole = (len(batch_offsets) - 1) // window_size * window_size
    bounds = batch_offsets[whole:].tolist()
    if len(bounds) == 1:
        return batch_offsets
    batches = [(start - end, start, end) for start, end in pairwise(bounds)]
    heapq.heapify(batches)
    while len(batches) < window_size and batches[0][0] <= -2:
        _, start, end = batches[0]
        middle = (start + end + 1) // 2
        heapq.heapreplace(batches, (start - middle, start, middle))
        heapq.heappush(batches, (middle - end, middle, end))
    starts = sorted(start for _, start, _ in batches)
    ends = [bounds[-1]] * (window_size - len(starts) + 1)
    return np.concatenate([batch_offsets[:whole], np.array(starts + ends, dtype=np.int64)])


def assign(plan: BatchPlan, window: int, drafters: int, lengths: IntArray, attention_length: int) -> IntArray:
    """Who takes what of a window: int64[A, M] micro-batch numbers, column d being drafter d's.

    Longest processing time first (Graham 1969), A to each drafter: the costliest micro-batch left goes to
    the least loaded drafter that has fewer than A. Read row by row this is the order of emission: one to
    each drafter in turn, so that they start and end together.

    `lengths` are those that the plan was made for, `attention_length` its request's. Raises PlanError if
    M does not divide the window.
    """
    batches = plan.window(window)
    each, rest = divmod(len(batches), drafters)
    if rest:
        raise PlanError(f"a window of {len(batches)} micro-batches cannot be shared by {drafters} drafters")
    costs = {number: _cost(lengths[plan.batch(number)], plan.layout, attention_length) for number in batches}
    taken: list[list[int]] = [[] for _ in range(drafters)]
    loads = [(0, drafter) for drafter in range(drafters)]
    for number in sorted(batches, key=lambda number: (-costs[number], number)):
        load, drafter = heapq.heappop(loads)
        taken[drafter].append(number)
        if len(taken[drafter]) < each:
            heapq.heappush(loads, (load + costs[number], drafter))
    return np.array(taken, dtype=np.int64).T.copy()


def _cost(lengths: IntArray, layout: Layout, attention_length: int) -> int:
    """Relative work of a micro-batch: tokens x (attention_length + length), padding included."""
    if layout == "padded":
        longest = int(lengths.max(initial=0))
        return len(lengths) * longest * (attention_length + longest)
    return sum(length * (attention_length + length) for length in lengths.tolist())


def _shuffled(
    samples: IntArray, batch_offsets: IntArray, rng: np.random.Generator
) -> tuple[IntArray, IntArray]:
    order = rng.permutation(len(batch_offsets) - 1)
    rows = np.diff(batch_offsets)[order]
    offsets = np.zeros_like(batch_offsets)
    np.cumsum(rows, out=offsets[1:])
    moved_by = np.repeat(batch_offsets[:-1][order] - offsets[:-1], rows)
    return samples[np.arange(len(samples)) + moved_by], offsets
