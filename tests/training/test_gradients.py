from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from dflash.data.sources import open_store
from dflash.training.gradients import MicroBatchGradients, diversity, mean_cosine, noise_scale
from dflash.training.models import load_models
from dflash.training.run import training_run
from dflash.training.schedule import Window, in_training_order


def sketches(*gradients):
    """Of micro-batches whose gradients add up in ``.grad``, as they do in training."""
    weights = [nn.Parameter(torch.zeros(40, 20)), nn.Parameter(torch.zeros(200))]
    measure = MicroBatchGradients(weights)
    for gradient in gradients:
        for weight, piece in zip(weights, (gradient[:800].view(40, 20), gradient[800:]), strict=True):
            weight.grad = piece.clone() if weight.grad is None else weight.grad + piece
        measure.after_micro_batch()
    return measure.finish_window()


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_follows_the_definitions_to_the_error_of_a_sketch():
    gradients = list(randn(6, 1000) + 0.5)
    g = torch.stack(gradients).double().numpy()
    found = sketches(*gradients)
    assert diversity(found) == pytest.approx(diversity(g), rel=0.1)
    assert diversity(g) == pytest.approx(sum(x @ x for x in g) / (g.sum(0) @ g.sum(0)), rel=1e-9)
    unit = g / np.linalg.norm(g, axis=1)[:, None]
    exact = np.mean([unit[i] @ unit[j] for i in range(6) for j in range(i)])
    assert mean_cosine(g) == pytest.approx(exact, rel=1e-9)
    assert mean_cosine(found) == pytest.approx(exact, abs=0.05)


def test_equal_gradients_give_one_over_n_whatever_the_sketch():
    one = randn(1000)
    assert diversity(sketches(one, one, one, one)) == pytest.approx(1 / 4, rel=1e-5)
    assert mean_cosine(sketches(one, one, one)) == pytest.approx(1, rel=1e-5)


def test_orthogonal_gradients_give_one():
    assert diversity(np.eye(7)[:3]) == 1
    assert mean_cosine(np.eye(7)[:3]) == 0
    # Coordinates of different floats of the sketch stay orthogonal in it.
    assert diversity(sketches(*torch.eye(1000)[:3])) == pytest.approx(1, rel=1e-5)


def test_gradients_that_cancel_have_no_diversity_and_no_infinity():
    one = randn(1000)
    assert diversity(sketches(one, -one)) is None
    assert diversity(sketches()) is None
    assert mean_cosine(sketches(one)) is None
    assert mean_cosine(np.zeros((3, 4))) is None


def test_windows_do_not_leak_into_each_other():
    weight = nn.Parameter(torch.zeros(2))
    measure = MicroBatchGradients([weight])
    for _ in range(2):
        weight.grad = torch.tensor([1.0, 0.0])
        measure.after_micro_batch()
        weight.grad = torch.tensor([1.0, 1.0])
        measure.after_micro_batch()
        assert diversity(measure.finish_window()) == pytest.approx(2 / 2)


def test_the_sketches_of_two_drafters_are_those_of_one():
    a, b, c = randn(3, 1000)
    together = sketches(a, b, c)
    apart = np.concatenate([sketches(a, c), sketches(b)])[[0, 2, 1]]
    np.testing.assert_allclose(together, apart, atol=1e-4)


def test_noise_scale_of_a_quadratic_with_a_known_covariance():
    """Loss |H (w - x)|^2 / 2 of samples x ~ N(m, C): gradients H^2 (w - x) have covariance H^2 C H^2."""
    rng = np.random.default_rng(0)
    dims, windows, n = 30, 4000, 4
    h2 = np.diag(rng.uniform(0.5, 2, dims)) ** 2
    root = rng.normal(size=(dims, dims)) / np.sqrt(dims)
    mean = rng.normal(size=dims)
    known = np.trace(h2 @ root @ root.T @ h2) / np.square(h2 @ mean).sum()
    tokens = rng.integers(50, 150, (windows, n)).astype(float)
    # A micro-batch of T tokens is a mean over T samples.
    draws = rng.normal(size=(windows, n, dims)) @ root.T / np.sqrt(tokens)[..., None]
    gradients = (mean + draws) @ h2
    assert noise_scale(gradients, tokens) == pytest.approx(known, rel=0.05)


def test_noise_scale_is_withheld_where_the_gradient_is_lost():
    gradients = np.array([[[1.0, 0.0], [-1.0, 0.0]]])
    assert noise_scale(gradients, np.full((1, 2), 100.0)) is None


def test_a_window_shared_by_two_drafters_has_the_diversity_of_one(small_config):
    """The same micro-batches, accumulated by one drafter or by two that add their gradients."""

    def diversities(drafters):
        config = msgspec.structs.replace(
            small_config, pipeline=msgspec.structs.replace(small_config.pipeline, drafters=drafters)
        )
        store = open_store(config.data)
        sizes = np.split(store.rows()[:48], 12)
        windows = [
            Window(0, "padded", [(rows, store.lengths[rows]) for rows in sizes[start : start + 4]])
            for start in (0, 4, 8)
        ]
        work = in_training_order(windows, [], [], drafters=drafters)
        models = load_models(config, store)
        with training_run(config, store, models, work, len(windows), diversity=True) as run:
            return [(result.gradient_diversity, result.gradient_cosine) for result in run.results]

    one, two = diversities(1), diversities(2)
    np.testing.assert_allclose(two, one, rtol=2e-3, atol=2e-3)
    assert all(1 / 4 <= found <= 4 for found, _ in one)
