from __future__ import annotations

import itertools
import math
from typing import Any, Literal

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dflash.bench.statistics import (
    SignedRanks,
    binomial_bounds,
    binomial_distribution,
    critical_value,
    detectable,
    hodges_lehmann,
    holm,
    least_pairs,
    median_interval,
    paired_ratio,
    signed_rank_distribution,
)

times = st.floats(1e-3, 1e6)
pairs = st.lists(st.tuples(times, times), min_size=1, max_size=24)
different = st.lists(st.integers(-(10**6), 10**6), min_size=6, max_size=16, unique_by=abs)


@pytest.mark.parametrize("n", range(1, 11))
def test_signed_ranks_against_every_sign_vector(n: int) -> None:
    signs = np.array(list(itertools.product((0, 1), repeat=n)))
    sums = signs @ np.arange(1, n + 1)
    assert np.array_equal(signed_rank_distribution(n), np.bincount(sums) / 2**n)


@pytest.mark.parametrize("n", [20, 40, 60])
def test_signed_ranks_of_many_pairs_keep_the_closed_form_moments(n: int) -> None:
    w = np.arange(n * (n + 1) // 2 + 1)
    p = signed_rank_distribution(n)
    mean = n * (n + 1) / 4
    assert math.isclose(p.sum(), 1, rel_tol=1e-12)
    assert math.isclose(p @ w, mean, rel_tol=1e-12)
    assert math.isclose(p @ (w - mean) ** 2, n * (n + 1) * (2 * n + 1) / 24, rel_tol=1e-12)


@pytest.mark.parametrize("n", [1, 5, 17])
def test_binomial_against_scipy(n: int) -> None:
    assert np.allclose(binomial_distribution(n), scipy.stats.binom.pmf(np.arange(n + 1), n, 0.5), rtol=1e-12)


# One-sided signed-rank critical values, as printed in tables of the test: 5 %, 2.5 % and 1 %.
@pytest.mark.parametrize(
    ("n", "expected"),
    [(4, (None, None, None)), (5, (0, None, None)), (6, (2, 0, None)), (10, (10, 8, 5)), (20, (60, 52, 43))],
)
def test_critical_values_are_those_of_the_printed_tables(n: int, expected: tuple[int | None, ...]) -> None:
    p = signed_rank_distribution(n)
    assert tuple(critical_value(p, level) for level in (0.95, 0.975, 0.99)) == expected


def test_the_level_decides_how_many_pairs_an_interval_needs() -> None:
    assert [least_pairs(level) for level in (0.95, 0.98, 0.99, 0.995)] == [5, 6, 7, 8]
    five, six = [1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    for interval in (hodges_lehmann, median_interval):
        assert (interval(five).low, interval(five).high) == (None, None)
        assert (interval(six).low, interval(six).high) == (1.0, 6.0)
        assert interval(five).estimate == 3.0
        assert interval(six, level=1 - 1 / 64).low == 1.0  # reached exactly is reached


def test_the_textbook_case() -> None:
    """Depression scale factors of nine patients: Hollander and Wolfe, examples 3.1, 3.3 and 3.4."""
    before = np.array([1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30])
    after = np.array([0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29])
    found = hodges_lehmann(after - before, level=0.98)
    assert found.n == 9
    assert (found.estimate, found.low, found.high) == pytest.approx((-0.46, -0.786, -0.010), abs=1e-9)


@settings(deadline=None)
@given(different, st.sampled_from([0.95, 0.98]))
def test_bounds_are_where_scipys_exact_test_turns(values: list[int], level: float) -> None:
    """theta is below ``low`` if, and only if, the exact one-sided test rejects it."""
    x = np.array(values, dtype=float)
    averages = np.unique(np.add.outer(x, x) / 2)
    assume(len(averages) == len(x) * (len(x) + 1) // 2)
    step = np.diff(averages).min() / 2
    found = hodges_lehmann(x, level)
    assert found.low is not None and found.high is not None

    def p_value(theta: float, alternative: Literal["greater", "less"]) -> float:
        return float(scipy.stats.wilcoxon(x - theta, alternative=alternative, method="exact").pvalue)

    alpha = 1 - level
    assert p_value(found.low - step, "greater") <= alpha < p_value(found.low + step, "greater")
    assert p_value(found.high + step, "less") <= alpha < p_value(found.high - step, "less")


@settings(deadline=None)
@given(
    st.lists(st.integers(-1000, 1000), min_size=6, max_size=40, unique=True), st.sampled_from([0.95, 0.98])
)
def test_median_bounds_against_scipys_quantile_test(values: list[int], level: float) -> None:
    found = median_interval(values, level)
    below: Any = scipy.stats.quantile_test(values, p=0.5, alternative="greater").confidence_interval(level)
    above: Any = scipy.stats.quantile_test(values, p=0.5, alternative="less").confidence_interval(level)
    assert (found.low, found.high) == (below.low, above.high)
    assert found.low is not None and found.high is not None
    assert found.low <= found.estimate <= found.high


@pytest.mark.parametrize("n", [6, 10, 15])
def test_each_bound_misses_exactly_as_often_as_the_null_says(n: int) -> None:
    """Symmetric noise with heavy tails: P(low > truth) = P(W <= c), to three standard errors of 3000 runs."""
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([20, n])))
    runs, truth = 3000, 0.03
    found = [hodges_lehmann(truth + row) for row in generator.standard_t(2, (runs, n))]
    null = signed_rank_distribution(n)
    critical = critical_value(null, 0.98)
    assert critical is not None
    miss = float(null[: critical + 1].sum())
    assert miss <= 0.02
    error = 3 * math.sqrt(miss * (1 - miss) / runs)
    assert abs(np.mean([f.low is not None and f.low > truth for f in found]) - miss) <= error
    assert abs(np.mean([f.high is not None and f.high < truth for f in found]) - miss) <= error


@settings(deadline=None)
@given(pairs)
def test_swapping_the_arms_gives_the_reciprocal(values: list[tuple[float, float]]) -> None:
    reference, candidate = zip(*values, strict=True)
    one, other = paired_ratio(reference, candidate), paired_ratio(candidate, reference)
    assert math.isclose(one.estimate, 1 / other.estimate, rel_tol=1e-9)
    if one.low is not None and other.high is not None:
        assert math.isclose(one.low, 1 / other.high, rel_tol=1e-9)


@settings(deadline=None)
@given(pairs, times)
def test_a_common_scale_cancels_and_a_constant_ratio_is_found(
    values: list[tuple[float, float]], scale: float
) -> None:
    reference, candidate = np.array(values).T
    one, scaled = paired_ratio(reference, candidate), paired_ratio(scale * reference, scale * candidate)
    assert math.isclose(one.estimate, scaled.estimate, rel_tol=1e-9)
    constant = paired_ratio(reference, scale * reference)
    for value in (constant.estimate, constant.low, constant.high):
        assert value is None or math.isclose(value, scale, rel_tol=1e-9)


@settings(deadline=None)
@given(pairs)
def test_the_order_of_pairs_does_not_matter_and_the_bounds_hold_the_estimate(
    values: list[tuple[float, float]],
) -> None:
    reference, candidate = np.array(values).T
    found = paired_ratio(reference, candidate)
    assert found == paired_ratio(reference[::-1], candidate[::-1])
    assert found.n == len(values)
    assert (found.low is None) == (found.high is None) == (len(values) < 6)
    if found.low is not None and found.high is not None:
        assert found.low <= found.estimate <= found.high


def test_a_shared_drift_cancels_in_pairs() -> None:
    drift = np.exp(np.linspace(0, 2, 8))
    found = paired_ratio(1000 * drift, 1250 * drift)
    assert (found.low, found.estimate, found.high) == pytest.approx((1.25, 1.25, 1.25))


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_a_value_that_has_no_logarithm_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match=r"value 1 is .*: expected finite values above zero"):
        paired_ratio([1.0, wrong], [1.0, 1.0])
    with pytest.raises(ValueError, match="value 0 is"):
        paired_ratio([1.0, 1.0], [wrong, 1.0])


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_no_nan_and_no_infinity_gets_through(wrong: float) -> None:
    for interval in (hodges_lehmann, median_interval):
        with pytest.raises(ValueError, match="expected finite values"):
            interval([1.0, wrong])


def test_what_is_not_pairs_is_refused() -> None:
    with pytest.raises(ValueError, match="2 reference and 1 candidate values are not pairs"):
        paired_ratio([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="at least one value"):
        paired_ratio([], [])
    with pytest.raises(ValueError, match="level 98"):
        hodges_lehmann([1.0], level=98)


@given(different)
def test_p_values_are_those_of_scipys_exact_test(values: list[int]) -> None:
    x = np.array(values, dtype=float)
    assume(len(np.unique(np.abs(x))) == len(x) and 0 not in x)
    ranks = SignedRanks(x)
    for ours, side in ((ranks.p_above(), "greater"), (ranks.p_below(), "less")):
        assert math.isclose(ours, scipy.stats.wilcoxon(x, alternative=side, method="exact").pvalue)


@given(
    st.lists(st.integers(-4, 4), min_size=1, max_size=14),
    st.sampled_from([0.9, 0.95, 0.98, 0.99]),
)
def test_p_values_and_bounds_say_the_same_with_ties_and_zeros_too(values: list[int], level: float) -> None:
    ranks = SignedRanks(np.array(values, dtype=float))
    bounds = ranks.interval(level)
    assert (ranks.p_above() <= 1 - level) == (bounds.low is not None and bounds.low > 0)
    assert (ranks.p_below() <= 1 - level) == (bounds.high is not None and bounds.high < 0)


@pytest.mark.parametrize("n", range(1, 9))
def test_ties_and_zeros_never_make_an_alarm_likelier(n: int) -> None:
    """Every sign vector over sizes with ties and a zero: P(p <= alpha) <= alpha, by enumeration."""
    sizes = np.array([0.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 4.0])[:n]
    found = [SignedRanks(sizes * signs).p_above() for signs in itertools.product((-1, 1), repeat=n)]
    for alpha in (0.01, 0.02, 0.05, 0.25):
        assert np.mean(np.array(found) <= alpha) <= alpha


def closed_testing(p_values: list[float], alpha: float) -> list[bool]:
    """Marcus, Peritz and Gabriel: H_i is rejected if Bonferroni rejects every intersection that holds it."""
    places = range(len(p_values))
    subsets = [subset for size in places for subset in itertools.combinations(places, size + 1)]
    refuted = {subset for subset in subsets if min(p_values[i] for i in subset) <= alpha / len(subset)}
    return [all(subset in refuted for subset in subsets if i in subset) for i in places]


@given(
    st.lists(st.integers(0, 60).map(lambda k: k / 1000), max_size=6),
    st.sampled_from([0.01, 0.02, 0.05]),
)
def test_holm_is_the_shortcut_of_closed_testing(p_values: list[float], alpha: float) -> None:
    assert holm(p_values, alpha) == closed_testing(p_values, alpha)


def test_holm_on_a_worked_example() -> None:
    """0.004 <= 0.05/4 and 0.012 <= 0.05/3, but 0.03 > 0.05/2, and what comes after it stays too."""
    assert holm([0.03, 0.004, 0.012, 0.04], 0.05) == [False, True, True, False]
    assert holm([], 0.05) == []


def test_the_standard_error_is_the_estimates_own_deviation() -> None:
    rng = np.random.default_rng(7)
    for n, draws in ((10, rng.standard_normal((4000, 10))), (20, rng.standard_t(3, (4000, 20)))):
        found = [SignedRanks(row) for row in draws]
        estimates = [ranks.interval().estimate for ranks in found]
        errors = [ranks.standard_error() or math.nan for ranks in found]
        assert np.mean(errors) == pytest.approx(np.std(estimates), rel=0.1), n
    assert SignedRanks([1.0, 2.0, 3.0, 4.0]).standard_error() is None
    assert SignedRanks([1.0] * 5).standard_error() == 0


@pytest.mark.parametrize(("n", "level", "floor"), [(10, 0.98, 0.0), (20, 0.99, 0.0), (20, 0.98, 0.5)])
def test_a_detectable_shift_is_found_as_often_as_promised(n: int, level: float, floor: float) -> None:
    rng = np.random.default_rng(n)
    error = np.std([SignedRanks(row).interval().estimate for row in rng.standard_normal((4000, n))])
    shift = detectable(float(error), n, level, floor)
    found = [SignedRanks(shift + row) for row in rng.standard_normal((4000, n))]
    alarms = [ranks.p_above() <= 1 - level and ranks.interval().estimate >= floor for ranks in found]
    assert np.mean(alarms) == pytest.approx(0.9, abs=0.03)


def test_without_noise_the_floor_is_what_can_be_detected() -> None:
    assert detectable(0.0, 10, 0.98, 0.02) == 0.02


@given(st.integers(0, 200), st.integers(0, 200), st.sampled_from([0.9, 0.95, 0.99]))
def test_binomial_bounds_against_scipy(hits: int, misses: int, level: float) -> None:
    assume(hits + misses)
    test = scipy.stats.binomtest(hits, hits + misses)
    both = test.proportion_ci(confidence_level=2 * level - 1, method="exact")
    assert binomial_bounds(hits, hits + misses, level) == pytest.approx((both.low, both.high), abs=1e-9)


@pytest.mark.parametrize(
    ("hits", "of", "place", "expected"),
    [(0, 60, 1, 0.049), (2, 200, 1, 0.031), (0, 300, 1, 0.010), (30, 30, 0, 0.905), (59, 59, 0, 0.95)],
)
def test_binomial_bounds_that_are_well_known(hits: int, of: int, place: int, expected: float) -> None:
    assert binomial_bounds(hits, of)[place] == pytest.approx(expected, abs=0.0006)


def test_no_try_says_nothing_and_no_count_is_above_its_tries() -> None:
    assert binomial_bounds(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="3 of 2"):
        binomial_bounds(3, 2)
