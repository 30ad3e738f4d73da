from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from dflash.bench import steady_state
from dflash.bench.steady_state import truncation, unsteady


def series(rng: np.random.Generator, n: int, noise: float) -> np.ndarray:
    return np.exp(noise * rng.standard_normal(n))


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=24))
def test_truncation_is_the_minimum_of_the_formula(seconds: list[float]) -> None:
    def mser(cut: int) -> float:
        left = seconds[cut:]
        mean = sum(left) / len(left)
        return sum((x - mean) ** 2 for x in left) / len(left) ** 2

    cut = truncation(seconds)
    assert 0 <= cut <= len(seconds) // 2
    best = min(mser(d) for d in range(len(seconds) // 2 + 1))
    assert mser(cut) <= best * (1 + 1e-6) + 1e-12 * max(seconds) ** 2


@pytest.mark.parametrize("cold", [0, 1, 2, 4])
def test_truncation_cuts_what_is_cold(cold: int) -> None:
    seconds = np.tile([1.01, 0.99], 6)
    seconds[:cold] *= np.linspace(3, 1.3, cold)
    assert truncation(list(seconds)) == cold


def test_nothing_is_cut_from_nothing() -> None:
    assert truncation([]) == 0
    assert unsteady([], 2) is None
    assert unsteady([1.0, 1.0, 1.0], 2) is None


@pytest.mark.parametrize("n", [8, 10, 20])
@pytest.mark.parametrize("noise", [0.05, 0.10])
def test_noise_alone_is_seldom_called_unsteady(n: int, noise: float) -> None:
    rng = np.random.default_rng([n, int(1000 * noise)])
    called = sum(unsteady(list(series(rng, n, noise)), 2) is not None for _ in range(1000))
    assert called <= 25


def test_a_warm_up_that_is_too_short_is_named() -> None:
    seconds = np.tile([1.01, 0.99], 5)
    seconds[:4] *= 1.3
    assert unsteady(list(seconds), 4) is None
    assert unsteady(list(seconds), 2) == (
        "no steady state: 2 windows after 2 of warm-up took 30 % longer than the rest"
    )


def test_a_warm_up_that_is_too_short_is_found_under_noise() -> None:
    rng = np.random.default_rng(1)
    cold = [np.exp(0.02 * rng.standard_normal(10)) * np.repeat([1.3, 1.0], [4, 6]) for _ in range(200)]
    assert sum(unsteady(list(seconds), 2) is not None for seconds in cold) >= 180
    assert sum(unsteady(list(seconds), 4) is not None for seconds in cold) <= 10


@pytest.mark.parametrize(("factor", "word"), [(1.03, "slower"), (0.97, "faster")])
def test_a_drift_is_named(factor: float, word: str) -> None:
    seconds = [factor**window for window in range(10)]
    reason = unsteady(seconds, 2)
    assert reason is not None and reason.startswith("no steady state: windows got 2")
    assert reason.endswith(f" % {word} on the way")


def test_a_drift_too_small_to_matter_passes() -> None:
    assert unsteady([1.001**window for window in range(10)], 2) is None


@pytest.mark.parametrize("n", range(1, 8))
def test_inversions_against_every_permutation(n: int) -> None:
    counts = [
        sum(order[i] > order[j] for i, j in itertools.combinations(range(n), 2))
        for order in itertools.permutations(range(n))
    ]
    assert np.allclose(steady_state._inversions(n), np.bincount(counts) / len(counts))


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=12, unique=True))
def test_the_test_of_a_trend_and_its_slope_against_scipy(values: list[int]) -> None:
    x = np.array(values, dtype=float)
    tau = scipy.stats.kendalltau(np.arange(len(x)), x, method="exact")
    assert steady_state._mann_kendall(x) == pytest.approx(tau.pvalue)
    assert steady_state._theil_sen(x) == pytest.approx(scipy.stats.theilslopes(x)[0])


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 0.0, -1.0])
def test_times_that_are_none_are_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="finite times above zero"):
        unsteady([1.0, wrong, 1.0], 0)
