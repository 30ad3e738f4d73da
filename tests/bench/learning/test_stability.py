from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dflash.bench.learning.stability import (
    NORM_RISE,
    compare_spikes,
    fisher,
    spikes,
    spikes_of_run,
)
from dflash.errors import NonFiniteError

STEPS = 150


def curve(seed, noise=0.02):
    """A loss that falls as losses do, with independent relative noise."""
    rng = np.random.default_rng(seed)
    return (5.5 + 3 * np.exp(-np.arange(STEPS) / 15)) * (1 + noise * rng.standard_normal(STEPS))


def test_twenty_smooth_curves_have_no_spike():
    assert [spikes(curve(seed)) for seed in range(20)] == [[]] * 20
    assert [spikes(curve(seed), NORM_RISE) for seed in range(20)] == [[]] * 20


def test_sawtooth_and_drift_are_no_spikes():
    steps = np.arange(STEPS)
    assert spikes(5 + 0.01 * steps) == [], "a slow rise"
    assert spikes(5 + 0.3 * np.sin(steps / 12)) == [], "a wave longer than the history"
    assert spikes(np.full(STEPS, 5.0)) == [], "a constant has no deviation to divide by"


@pytest.mark.parametrize("at", [20, 60, 149])
def test_a_planted_spike_is_found_once(at):
    series = curve(3)
    rise = np.zeros(STEPS)
    rise[at : at + 6] = [4, 3, 2.2, 1.5, 1, 0.6][: STEPS - at]
    assert spikes(series + rise) == [at]


def test_two_spikes_beyond_the_refractory_time_are_two():
    series = curve(4)
    series[[40, 44, 70]] += 4
    assert spikes(series) == [40, 70]


def test_the_first_steps_have_no_history():
    series = curve(5)
    series[10] += 5
    assert spikes(series) == []


def test_a_value_that_is_not_finite_is_no_spike_but_an_error():
    series = curve(6)
    series[3] = np.nan
    with pytest.raises(NonFiniteError, match="step 3 is nan"):
        spikes(series)


def test_a_runs_spikes_are_counted_once_for_loss_and_norm():
    losses, norms = curve(7).tolist(), (1 + 0.1 * np.random.default_rng(0).random(STEPS)).tolist()
    losses[50], norms[49], norms[100] = losses[50] + 4, 20.0, 20.0
    assert spikes_of_run(losses, norms) == 2
    losses[49] = None
    assert spikes_of_run(losses, norms) == 2, "a window without weight is left out"


@pytest.mark.parametrize(
    ("hits", "of", "other", "other_of"), [(5, 6, 0, 6), (3, 8, 1, 6), (0, 6, 0, 6), (6, 6, 6, 6)]
)
def test_fisher_is_the_exact_test(hits, of, other, other_of):
    table = [[hits, of - hits], [other, other_of - other]]
    expected = stats.fisher_exact(table, alternative="greater").pvalue
    assert fisher(hits, of, other, other_of) == pytest.approx(expected)


def test_spikes_are_worse_if_more_seeds_have_them():
    assert compare_spikes([0] * 6, [1, 2, 0, 1, 1, 1]).worse
    assert not compare_spikes([0] * 6, [9, 9, 9, 0, 0, 0]).worse, (
        "p = 0.09 over seeds, whatever the steps say"
    )
    assert not compare_spikes([1] * 6, [2] * 6).worse
