"""Upper ends of buckets: the best ones, by dynamic programming, and the usual rules."""

from __future__ import annotations

import numpy as np

from dflash.batching.plan import IntArray

_Layer = tuple[IntArray, IntArray]


def optimal(lengths: IntArray, token_budget: int, buckets: int) -> IntArray:
    """Upper ends of the buckets, int64[k], ascending, that need the fewest micro-batches.

    Minimises the sum over buckets of N_k / floor(T / b_k): N_k samples of at most b_k tokens, T the token
    budget. Raising b to the largest value with the same floor(T / b) costs nothing, so only T // rows can
    be optimal, and only for row counts that some sample allows. The last end is the longest sample's
    length; k is the smaller of `buckets` and the number of such row counts. Equal costs go to the smaller
    boundary.

    Lengths are int64[n], each from 1 to token_budget.
    """
    if not len(lengths):
        return np.empty(0, dtype=np.int64)
    distinct, tally = np.unique(lengths, return_counts=True)
    # Candidates ascend in length, so their rows descend; each stands for all lengths that allow its rows.
    rows, first = np.unique(-(token_budget // distinct), return_index=True)
    rows = -rows
    ends: IntArray = np.minimum(token_budget // rows, distinct[-1])
    if buckets >= len(ends):
        return ends
    # Fixed point instead of fractions: integers compare alike everywhere. All sums stay within 2**62.
    weight = 2 ** (62 - len(lengths).bit_length()) // rows
    count = np.cumsum(np.add.reduceat(tally, first))
    cost, choices = weight * count, []
    for bucket in range(1, buckets):
        cost, choice = _one_more(cost, weight, count, bucket)
        choices.append(choice)
    picked = [len(ends) - 1]
    for choice in reversed(choices):
        picked.insert(0, int(choice[picked[0]]))
    best: IntArray = ends[picked]
    return best


def equal_tokens(lengths: IntArray, buckets: int) -> IntArray:
    """Upper ends, int64[k], of buckets with about the same number of real tokens each.

    Fewer than `buckets` where ends coincide, as in all the rules below. Lengths are int64[n].
    """
    ordered = np.sort(lengths)
    tokens = np.cumsum(ordered)
    return _at(ordered, np.searchsorted(tokens, _shares(int(ordered.sum()), buckets)))


def quantile(lengths: IntArray, buckets: int) -> IntArray:
    """Upper ends, int64[k], of buckets with about the same number of samples each."""
    return _at(np.sort(lengths), _shares(len(lengths), buckets) - 1)


def equal_width(lengths: IntArray, buckets: int) -> IntArray:
    """Upper ends, int64[k], of buckets that cover equal parts of the shortest to the longest length."""
    if not len(lengths):
        return np.empty(0, dtype=np.int64)
    return np.unique(lengths.min() + _shares(int(np.ptp(lengths)), buckets))


def _shares(total: int, buckets: int) -> IntArray:
    """total x k / buckets, rounded up, for k from 1 to buckets."""
    return np.array([-(-total * k // buckets) for k in range(1, buckets + 1)], dtype=np.int64)


def _at(ordered: IntArray, places: IntArray) -> IntArray:
    return np.unique(ordered[places]) if len(ordered) else ordered


def _one_more(cost: IntArray, weight: IntArray, count: IntArray, bucket: int) -> _Layer:
    """Least cost up to each candidate j, and the last end i < j before it, with one more bucket.

    The bucket from i to j costs weight[j] * (count[j] - count[i]). As weight and count ascend, this is
    Monge, w(a, c) + w(b, d) <= w(a, d) + w(b, c), so the leftmost best i never falls as j grows, and
    halving the range of j halves that of i: O(M log M) for M candidates.
    """
    least, choice = np.zeros_like(cost), np.zeros_like(cost)
    ranges = [(bucket, len(cost) - 1, bucket - 1, len(cost) - 2)]
    while ranges:
        low, high, left, right = ranges.pop()
        if low > high:
            continue
        j = (low + high) // 2
        i = slice(left, min(right, j - 1) + 1)
        total = cost[i] + weight[j] * (count[j] - count[i])
        best = int(np.argmin(total))
        least[j], choice[j] = total[best], left + best
        ranges += [(low, j - 1, left, left + best), (j + 1, high, left + best, right)]
    return least, choice
