from __future__ import annotations

import pytest
import torch
from torch import nn

from dflash.training.gradients import GradientDiversity


def diversity(*gradients):
    weights = [nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(3))]
    measure = GradientDiversity(weights)
    for gradient in gradients:
        for weight, piece in zip(weights, (gradient[:4].view(2, 2), gradient[4:]), strict=True):
            weight.grad = piece.clone() if weight.grad is None else weight.grad + piece
        measure.after_micro_batch()
    return measure.diversity(measure.finish_window())


def test_equals_its_definition():
    gradients = list(torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    expected = sum(g @ g for g in gradients) / (sum(gradients) @ sum(gradients))
    assert diversity(*[g.float() for g in gradients]) == pytest.approx(expected.item(), rel=1e-5)


def test_equal_gradients_give_one_over_n_and_orthogonal_ones_give_one():
    one = torch.arange(7.0)
    assert diversity(one, one, one, one) == pytest.approx(1 / 4)
    assert diversity(*torch.eye(7)[:3]) == pytest.approx(1)


def test_gradients_that_cancel_have_no_diversity_and_no_infinity():
    one = torch.arange(7.0)
    assert diversity(one, -one) is None
    assert diversity() is None


def test_windows_do_not_leak_into_each_other():
    weight = nn.Parameter(torch.zeros(2))
    measure = GradientDiversity([weight])
    for _ in range(2):
        weight.grad = torch.tensor([1.0, 0.0])
        measure.after_micro_batch()
        weight.grad = torch.tensor([1.0, 1.0])
        measure.after_micro_batch()
        assert measure.diversity(measure.finish_window()) == pytest.approx(2 / 2)
