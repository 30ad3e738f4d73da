"""How labels count: ours, and the mean of means of batches with equally many samples."""

from __future__ import annotations

import numpy as np
import pytest

from dflash.bench.learning.weighting import length_weights


def lengths_of(n=90_000):
    """The lengths of the run that started all this, as a clipped lognormal."""
    rng = np.random.default_rng(0)
    return np.clip(np.exp(rng.normal(np.log(1800), 0.6, n)).round().astype(np.int64), 65, 8191)


def mean_of_means(lengths, batches):
    """Weight of a token of documents below 1,024 and above 4,096, over a fair one, in a mean of means."""
    weight = np.zeros(len(lengths))
    for batch in batches:
        weight[batch] = 1 / lengths[batch].sum()
    weight /= (weight * lengths).sum() / lengths.sum()
    return tuple(
        float(np.average(weight[some], weights=lengths[some])) for some in (lengths < 1024, lengths > 4096)
    )


def test_mean_of_means_weighs_short_documents_seven_times_as_much_and_our_loss_does_not():
    lengths = lengths_of()
    batches = np.argsort(lengths, kind="stable")[: len(lengths) // 6 * 6].reshape(-1, 6)
    assert mean_of_means(lengths, batches) == pytest.approx((2.80, 0.39), abs=0.03)
    # In ours, all batches of a window share one denominator, be they as unequal as they may.
    window = [np.concatenate(list(batches))]
    found = length_weights(lengths, lengths, window)
    assert (found.short, found.long) == pytest.approx((1.0, 1.0))


def test_windows_of_one_length_each_weigh_short_samples_more():
    lengths = np.repeat([10, 20, 40], 6)
    windows = [np.arange(start, start + 6) for start in (0, 6, 12)]
    found = length_weights(lengths, lengths, windows)
    # Labels of a window: 60, 120, 240; fair is 3 / 420.
    assert found.short == pytest.approx(420 / 3 / 60)
    assert found.long == pytest.approx(420 / 3 / 240)


def test_random_windows_are_fair():
    lengths = lengths_of(30_000)
    order = np.random.default_rng(1).permutation(len(lengths))
    found = length_weights(lengths, lengths, list(order.reshape(-1, 300)))
    assert found.short == pytest.approx(1, abs=0.02)
    assert found.long == pytest.approx(1, abs=0.02)


def test_windows_without_a_label_take_no_step():
    lengths, labels = np.full(6, 10), np.array([1, 1, 0, 0, 1, 1])
    windows = [np.array([0, 1]), np.array([2, 3]), np.array([4, 5])]
    found = length_weights(lengths, labels, windows)
    assert (found.short, found.long) == (1.0, 1.0)
