from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from dflash.config import OptimizerSettings
from dflash.errors import NonFiniteError
from dflash.training.optimizer import Optimizer, schedule_factor


def test_schedule_is_a_linear_rise_and_a_half_cosine():
    factors = [schedule_factor(step, 100, warmup=0.1, final=0.2) for step in range(101)]
    assert factors[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert factors[10] == 1.0
    assert factors[55] == pytest.approx(0.6), "half way down, between 1 and 0.2"
    assert factors[100] == pytest.approx(0.2)
    assert schedule_factor(10**6, 100, warmup=0.1, final=0.2) == pytest.approx(0.2)
    assert all(math.isfinite(schedule_factor(s, 1, warmup=0.04, final=0.0)) for s in range(3))


def optimizer(weight, **changes):
    settings = OptimizerSettings(weight_decay=0.0, warmup=0.0, clip_norm=1e9, **changes)
    return Optimizer([weight], settings, total_windows=10)


def test_the_gradient_is_divided_by_the_windows_weight_then_clipped():
    weight = nn.Parameter(torch.zeros(2))
    step = optimizer(weight)
    weight.grad = torch.tensor([30.0, 40.0])
    assert step.commit(10.0) == pytest.approx(5.0), "the norm of [3, 4]"
    assert weight.grad is None


def test_a_window_of_weight_zero_takes_no_step_and_the_schedule_advances():
    weight = nn.Parameter(torch.ones(2))
    step = optimizer(weight)
    rates = []
    for _ in range(3):
        rates.append(step.learning_rate)
        assert step.commit(0.0) == 0.0
    assert weight.tolist() == [1.0, 1.0]
    assert rates == pytest.approx([3e-3 * schedule_factor(s, 10, 0.0, 0.1) for s in range(3)])


def test_first_step_is_adams():
    """Adam's first step is the learning rate times the gradient's sign, whatever its size."""
    weight = nn.Parameter(torch.zeros(2))
    step = optimizer(weight, learning_rate=0.5)
    weight.grad = torch.tensor([1e3, -1e-2])
    step.commit(7.0)
    assert weight.tolist() == pytest.approx([-0.5, 0.5], rel=1e-4)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_gradients_fail_at_once(value):
    weight = nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([1.0, value])
    with pytest.raises(NonFiniteError, match="gradient"):
        optimizer(weight).commit(1.0)


def test_non_finite_weights_fail_at_once():
    weight = nn.Parameter(torch.tensor([0.0, float("inf")]))
    weight.grad = torch.ones(2)
    with pytest.raises(NonFiniteError, match="weight"):
        optimizer(weight).commit(1.0)
