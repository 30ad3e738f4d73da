from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dflash.bench.noise import MODELS, NoiseModel, simulate

SILENT = NoiseModel(
    process=0,
    wander=0,
    persistence=0.9,
    trend=0,
    neighbour=0,
    arrives=0.04,
    leaves=0.15,
    spikes=0,
    spike=0.05,
)


def draw(model: NoiseModel, repeats: int = 4000, pairs: int = 20, effect: float = 0.0) -> np.ndarray:
    """Log time differences candidate - reference, [repeats, pairs]."""
    reference, candidate = simulate(np.random.default_rng(3), repeats, pairs, effect, model)
    assert reference.shape == candidate.shape == (repeats, pairs)
    return candidate - reference


def test_without_noise_the_effect_is_all_there_is() -> None:
    assert np.allclose(draw(SILENT, 10, effect=0.07), 0.07)


def test_processes_are_independent_so_a_pair_has_twice_their_variance() -> None:
    assert draw(replace(SILENT, process=0.02)).var() == pytest.approx(2 * 0.02**2, rel=0.03)


def test_wandering_cancels_in_adjacent_trials_but_for_what_changes_from_one_to_the_next() -> None:
    model = replace(SILENT, wander=0.03)
    assert draw(model).var() == pytest.approx(2 * 0.03**2 * (1 - 0.9), rel=0.03)
    reference, _ = simulate(np.random.default_rng(3), 4000, 20, 0.0, model)
    assert reference.std() == pytest.approx(0.03, rel=0.03)


def test_a_trend_alternates_in_sign_by_the_order_of_the_trials() -> None:
    """ABBA: pair by pair the second trial is later by one step, and it is each arm's in turn."""
    differences = draw(replace(SILENT, trend=0.04), repeats=200)
    assert np.allclose(differences[:, 1:], -differences[:, :-1])
    assert abs(differences.sum(axis=1)).max() < 1e-12


def test_the_neighbour_is_there_as_often_as_he_comes_and_goes() -> None:
    reference, _ = simulate(np.random.default_rng(3), 4000, 20, 0.0, replace(SILENT, neighbour=1.0))
    assert reference.mean() == pytest.approx(0.04 / (0.04 + 0.15), abs=0.01)


def test_bursts_are_as_frequent_and_at_least_as_large_as_said() -> None:
    reference, _ = simulate(np.random.default_rng(3), 4000, 20, 0.0, replace(SILENT, spikes=0.06))
    assert (reference > 0).mean() == pytest.approx(0.06, abs=0.005)
    hit = np.expm1(reference[reference > 0])
    assert hit.min() >= 0.05 - 1e-12
    assert (hit > 0.10).mean() == pytest.approx(0.25, abs=0.02)  # Pareto with exponent 2: (5 % / 10 %)^2


def test_disturbed_pairs_are_as_they_were_measured() -> None:
    """Adjacent trials on two shared cores: deviation 8.4 %, a robust one of 2.6 %, 8.2 % beyond 10 %."""
    differences = draw(MODELS["disturbed"]).ravel()
    robust = 1.4826 * np.median(abs(differences - np.median(differences)))
    assert robust == pytest.approx(0.026, abs=0.003)
    assert differences.std() == pytest.approx(0.084, abs=0.01)
    assert (abs(differences) > 0.1).mean() == pytest.approx(0.082, abs=0.01)


def test_the_same_generator_gives_the_same_times() -> None:
    one, other = (simulate(np.random.default_rng(9), 5, 10, 0.1, MODELS["noisy"]) for _ in range(2))
    assert np.array_equal(one, other)
