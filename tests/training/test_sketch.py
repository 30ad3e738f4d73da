"""A sketch against the gradient itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from dflash.training.sketch import SKETCH_SIZE, GradientSketch


def weights_of(gradients):
    weights = [nn.Parameter(torch.zeros_like(one)) for one in gradients]
    for weight, one in zip(weights, gradients, strict=True):
        weight.grad = one.clone()
    return weights


def sketch_of(sketch, weights, gradients):
    for weight, one in zip(weights, gradients, strict=True):
        weight.grad = one.clone()
    return sketch().double()


def normal(*shapes, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def in_columns(*shapes, seed):
    """Nearly all of the gradient in a few columns of each matrix, as outlier features make it."""
    gradients = normal(*shapes, seed=seed)
    for one in gradients:
        one[..., :3] *= 100
    return gradients


@pytest.mark.parametrize("kind", [normal, in_columns])
@pytest.mark.parametrize("shapes", [[(96, 480), (96,), (256, 96)], [(20, 4096), (300, 32)]])
def test_norms_and_inner_products_are_kept_to_one_over_the_root_of_its_size(kind, shapes):
    sketch = GradientSketch(weights := weights_of(kind(*shapes, seed=0)))
    norms, products = [], []
    for seed in range(25):
        a, b = kind(*shapes, seed=2 * seed), kind(*shapes, seed=2 * seed + 1)
        flat_a, flat_b = (torch.cat([one.flatten() for one in g]).double() for g in (a, b))
        small_a, small_b = sketch_of(sketch, weights, a), sketch_of(sketch, weights, b)
        norms.append((small_a @ small_a / (flat_a @ flat_a)).item() - 1)
        size = flat_a.norm() * flat_b.norm()
        products.append(((small_a @ small_b - flat_a @ flat_b) / size).item())
    # One map, so its luck with a few dominant entries is in every repeat.
    assert np.sqrt(np.mean(np.square(norms))) < 1.5 * math.sqrt(2 / SKETCH_SIZE)
    assert np.sqrt(np.mean(np.square(products))) < 1.5 * math.sqrt(1 / SKETCH_SIZE)


def test_is_unbiased_over_many_gradients():
    sketch = GradientSketch(weights := weights_of(normal((300, 50), seed=0)), size=101)
    ratios = []
    for seed in range(300):
        (g,) = normal((300, 50), seed=seed)
        small = sketch_of(sketch, weights, [g])
        ratios.append((small @ small / g.double().square().sum()).item())
    error = math.sqrt(2 / 101 / 300)
    assert abs(np.mean(ratios) - 1) < 4 * error


def test_is_linear_and_reads_chunks_of_any_place(monkeypatch):
    monkeypatch.setattr("dflash.training.sketch._ROWS_OF_A_CHUNK", 3)
    shapes = [(7, 5), (3,), (40, 11), (1,), (90,)]
    sketch = GradientSketch(weights := weights_of(normal(*shapes, seed=0)), size=13)
    a, b = normal(*shapes, seed=1), normal(*shapes, seed=2)
    both = sketch_of(sketch, weights, [2 * x - y for x, y in zip(a, b, strict=True)])
    expected = 2 * sketch_of(sketch, weights, a) - sketch_of(sketch, weights, b)
    torch.testing.assert_close(both, expected, rtol=1e-4, atol=1e-4)


def test_every_coordinate_goes_to_one_float_with_a_sign(monkeypatch):
    monkeypatch.setattr("dflash.training.sketch._ROWS_OF_A_CHUNK", 2)
    weight = nn.Parameter(torch.zeros(9, 9))
    sketch = GradientSketch([weight], size=7)
    for at in range(81):
        weight.grad = nn.functional.one_hot(torch.tensor(at), 81).float().view(9, 9)
        assert sorted(sketch().abs().tolist()) == [0] * 6 + [1], "and nothing is left of the one before"


def test_is_the_same_map_everywhere_and_counts_missing_gradients_as_zero():
    (g,) = normal((50, 50), seed=3)
    first, second = (nn.Parameter(torch.zeros(50, 50)), nn.Parameter(torch.zeros(10)))
    first.grad = g
    small = GradientSketch([first, second], size=31)()
    second.grad = torch.zeros(10)
    assert torch.equal(small, GradientSketch([first, second], size=31)())
    assert small[:4].tolist() == pytest.approx(FIXED, rel=1e-5), "the signs are fixed for ever"


FIXED = [11.529258728, -13.54952526, 6.225436211, -14.85092163]
