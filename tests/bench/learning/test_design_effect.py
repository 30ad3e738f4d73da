"""The estimator on gradients whose variances are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.bench.learning.design_effect import Samples, combine, deal, design_effect, window_means

LEVEL = 0.98
DIMS, WINDOWS, SIZE = 24, 40, 20


def samples(rng, content, noise=1.0):
    """Samples of equal tokens and weight, in order of length; their mean gradient moves with the length."""
    n = WINDOWS * SIZE
    length = np.linspace(-1, 1, n)
    direction = rng.normal(size=DIMS)
    direction /= np.linalg.norm(direction)
    common = rng.normal(size=DIMS)
    values = common + content * np.outer(length, direction) + noise * rng.normal(size=(n, DIMS))
    return Samples(values, np.ones(n), np.full(n, 100))


def in_windows(order):
    return list(np.asarray(order).reshape(WINDOWS, SIZE))


def known(content):
    """Sorted: variance of the noise / SIZE, and nearly all of the content's. Random: both / SIZE."""
    of_content = content**2 / 3  # of a uniform draw from -1 to 1
    within = of_content / WINDOWS**2
    return ((DIMS + within) / SIZE + of_content - within) / ((DIMS + of_content) / SIZE)


@pytest.mark.parametrize("content", [0.0, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("shuffled", [False, True])
def test_sorted_windows_have_the_variance_that_was_put_in(content, shuffled):
    rng = np.random.default_rng(1)
    windows = in_windows(np.arange(WINDOWS * SIZE))
    if shuffled:
        windows = [windows[at] for at in rng.permutation(WINDOWS)]
    by_seed = [[design_effect(samples(rng, content), windows, rng)] for _ in range(3)]
    found = combine(by_seed, LEVEL)
    assert found.low < known(content) < found.high
    assert found.value == pytest.approx(known(content), rel=0.15)
    assert (found.windows, found.seeds, found.basis) == (3 * WINDOWS, 3, "windows")


def test_only_the_lag_1_cosine_tells_ordered_sorting_from_shuffled():
    rng = np.random.default_rng(2)
    world, ordered = samples(rng, 8.0), in_windows(np.arange(WINDOWS * SIZE))
    shuffled = [ordered[at] for at in rng.permutation(WINDOWS)]
    first, second = (design_effect(world, windows, rng) for windows in (ordered, shuffled))
    assert first.log == pytest.approx(second.log, abs=0.1)
    assert first.lag_1_cosine > 0.6
    assert abs(second.lag_1_cosine) < 0.35
    # Neighbours of an ordered plan are alike, so their differences say that nothing is wrong.
    assert first.successive < 1.3 < 5 < second.successive


def test_random_against_random_is_within_its_bounds_as_often_as_they_say():
    rng = np.random.default_rng(3)
    inside, repeats = 0, 150
    for _ in range(repeats):
        world = samples(rng, 3.0)
        effect = design_effect(world, in_windows(rng.permutation(WINDOWS * SIZE)), rng)
        found = combine([[effect]], LEVEL)
        inside += found.low < 1 < found.high
    # 96 % are expected: two one-sided bounds at 98 %. Four deviations of 150 draws below it are 90 %.
    assert inside / repeats > 0.90


def test_bounds_shrink_with_the_windows():
    rng = np.random.default_rng(4)

    def width(seeds):
        effects = [
            [design_effect(samples(rng, 3.0), in_windows(rng.permutation(WINDOWS * SIZE)), rng)]
            for _ in range(seeds)
        ]
        found = combine(effects, LEVEL)
        return math.log(found.high / found.low)

    assert width(4) == pytest.approx(width(1) / 2, rel=0.35)


def test_points_of_a_seed_are_no_independent_evidence():
    rng = np.random.default_rng(5)
    effect = design_effect(samples(rng, 3.0), in_windows(rng.permutation(WINDOWS * SIZE)), rng)
    once, thrice = combine([[effect]], LEVEL), combine([[effect] * 3], LEVEL)
    assert thrice.value == pytest.approx(once.value)
    assert thrice.windows == once.windows
    assert math.log(thrice.high / thrice.low) > 0.9 * math.log(once.high / once.low)


def test_six_seeds_are_judged_by_their_spread():
    rng = np.random.default_rng(6)
    effects = [
        [design_effect(samples(rng, 0.0), in_windows(rng.permutation(WINDOWS * SIZE)), rng)] for _ in range(6)
    ]
    found = combine(effects, LEVEL)
    assert found.basis == "seeds"
    logs = sorted(effect[0].log for effect in effects)
    assert math.log(found.low) == pytest.approx(logs[0]), "the least of six is an exact bound at 1 - 2^-6"
    assert math.log(found.high) == pytest.approx(logs[-1])


def test_unequal_weights_count_as_the_optimizer_feels_them():
    """A step of few labels is as large as one of many, so windows with a tenth of the labels are noisier."""
    rng = np.random.default_rng(7)
    n = WINDOWS * SIZE
    weights = np.where(np.arange(n) < n // 2, 10.0, 1.0)
    values = rng.normal(size=(n, DIMS)) * np.sqrt(weights)[:, None]
    world = Samples(values, weights, np.full(n, 100))
    effect = design_effect(world, in_windows(np.arange(n)), rng)
    # Own: mean of 1 / weight. Random: 1 / mean weight, as every window holds about as many of both.
    assert math.exp(effect.log) == pytest.approx((1 / 10 + 1) / 2 * 5.5, rel=0.2)


def test_means_are_sums_over_sums():
    world = Samples(np.array([[1.0], [2.0], [6.0]]), np.array([1.0, 0.0, 3.0]), np.array([5, 5, 5]))
    windows = [np.array([0, 1]), np.array([2])]
    np.testing.assert_allclose(window_means(world, windows), [[3.0], [2.0]])


@given(st.integers(0, 2**32 - 1), st.integers(3, 12))
def test_dealing_keeps_every_sample_and_nearly_every_windows_tokens(seed, count):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(1, 50, 200)
    world = Samples(np.ones((200, 1)), np.ones(200), tokens)
    windows = np.array_split(rng.permutation(200), count)
    dealt = deal(world, windows, rng)
    np.testing.assert_array_equal(np.sort(np.concatenate(dealt)), np.arange(200))
    own, its = (np.sort([tokens[window].sum() for window in some]) for some in (windows, dealt))
    assert np.abs(own - its).max() <= 50 * count, "each cut is off by half a sample at most"
    assert np.abs(np.cumsum(np.sort(own)) - np.cumsum(np.sort(its))).max() <= 50 * count


def test_what_cannot_be_compared_is_none():
    rng = np.random.default_rng(0)
    world = Samples(np.ones((9, 2)), np.ones(9), np.full(9, 10))
    windows = list(np.arange(9).reshape(3, 3))
    assert design_effect(world, windows[:2], rng) is None, "two windows have no variance to speak of"
    assert design_effect(world, windows, rng) is None, "nothing varies"
    assert combine([], LEVEL) is None
    nothing = Samples(np.ones((9, 2)), np.r_[np.zeros(3), np.ones(6)], np.full(9, 10))
    assert design_effect(nothing, windows, rng) is None, "a window without weight takes no step"
