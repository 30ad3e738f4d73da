"""From micro-batches to windows of exactly A x M, and from a window to its drafters."""

from __future__ import annotations

import heapq
from itertools import pairwise
from typing import Literal

import numpy as np

from dflash.batching.plan import LEDGER, BatchPlan, IntArray, Layout, PlanRequest, Reason, ledger
from dflash.batching.segments import per_segment
from dflash.errors import PlanError

_ORDER_STREAM = 2**20  # above the strategies' own


def build(
    samples: IntArray,
    batch_offsets: IntArray,
    lengths: IntArray,
    request: PlanRequest,
    *,
    order: Literal["shuffled", "given"] | IntArray = "shuffled",
    layout: Layout = "padded",
) -> BatchPlan:
    """Order micro-batches, fill windows of exactly A x M of them, and settle the tail.

    samples: int64[m], rows of lengths (int64[n]); batch_offsets: int64[b + 1] into samples.
    order: of the micro-batches; int64[b] is a permutation of them, as `ordering` makes it.
    The tail's micro-batches, those that fill no window, are split (`spread`), joined by empty ones
    (`pad`) or put into the ledger (`drop`). The result depends on A and M only through A x M.
    """
    if isinstance(order, str) and order == "shuffled":
        order = request.rng(_ORDER_STREAM).permutation(len(batch_offsets) - 1)
    if not isinstance(order, str):
        samples, batch_offsets = _reordered(samples, batch_offsets, order)
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
    ids = np.arange(len(lengths), dtype=np.int64)
    ids.flags.writeable = False  # so that the plan need not copy it
    return BatchPlan(
        samples=samples,
        batch_offsets=batch_offsets,
        window_offsets=np.arange(0, len(batch_offsets), request.window_size, dtype=np.int64),
        layout=layout,
        ids=ids,
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
    each = _each(len(batches), drafters)
    window_costs = _costs(plan, batches, lengths, attention_length).tolist()
    return batches.start + np.array(_longest_first(window_costs, drafters, each), dtype=np.int64)


def assign_all(plan: BatchPlan, drafters: int, lengths: IntArray, attention_length: int) -> IntArray:
    """`assign` of every window at once: int64[w, A, M]; all windows must have the same size."""
    if not plan.windows:
        return np.empty((0, 0, drafters), dtype=np.int64)
    size = plan.batches // plan.windows
    each = _each(size, drafters)
    by_window = costs(plan, lengths, attention_length).reshape(-1, size).tolist()
    taken: IntArray = np.array([_longest_first(one, drafters, each) for one in by_window], dtype=np.int64)
    taken += plan.window_offsets[:-1, None, None]
    return taken


def costs(plan: BatchPlan, lengths: IntArray, attention_length: int) -> IntArray:
    """Relative work of each micro-batch, int64[b]: tokens x (attention_length + length), padding included."""
    return _costs(plan, range(plan.batches), lengths, attention_length)


def _costs(plan: BatchPlan, batches: range, lengths: IntArray, attention_length: int) -> IntArray:
    offsets = plan.batch_offsets[batches.start : batches.stop + 1]
    tokens = lengths[plan.samples[offsets[0] : offsets[-1]]]
    offsets = offsets - offsets[0]
    if plan.layout == "packed":
        return per_segment(np.add, tokens * (attention_length + tokens), offsets)
    longest = per_segment(np.maximum, tokens, offsets)
    padded: IntArray = np.diff(offsets) * longest
    return padded * (attention_length + longest)


def _each(size: int, drafters: int) -> int:
    each, rest = divmod(size, drafters)
    if rest:
        raise PlanError(f"a window of {size} micro-batches cannot be shared by {drafters} drafters")
    return each


def _longest_first(window_costs: list[int], drafters: int, each: int) -> list[list[int]]:
    """Places in the window, [each][drafters]. Python's integers: a drafter's sum may exceed 64 bits."""
    taken: list[list[int]] = [[] for _ in range(drafters)]
    loads = [(0, drafter) for drafter in range(drafters)]
    for place in sorted(range(len(window_costs)), key=window_costs.__getitem__, reverse=True):
        load, drafter = heapq.heappop(loads)
        taken[drafter].append(place)
        if len(taken[drafter]) < each:
            heapq.heappush(loads, (load + window_costs[place], drafter))
    return [list(row) for row in zip(*taken, strict=True)]


def _reordered(samples: IntArray, batch_offsets: IntArray, order: IntArray) -> tuple[IntArray, IntArray]:
    rows = np.diff(batch_offsets)[order]
    offsets = np.zeros_like(batch_offsets)
    np.cumsum(rows, out=offsets[1:])
    places = np.repeat(batch_offsets[:-1][order] - offsets[:-1], rows)
    places += np.arange(len(samples))
    return samples[places], offsets
