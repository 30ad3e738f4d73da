from __future__ import annotations

import math

import pytest
import torch

from dflash.config import Config, DrafterSettings, load_config
from dflash.errors import UsageError
from dflash.models.loss import CrossEntropy, block_loss
from dflash.models.position_weights import ExponentialDecay

EVERY_SLOT = torch.ones(2, 16, dtype=torch.bool)
NOTHING = torch.zeros(2, 16, dtype=torch.float64)


def test_decay_is_the_papers():
    weights = ExponentialDecay(7.0)(EVERY_SLOT, NOTHING)
    assert weights.dtype == torch.float64
    assert weights[1].tolist() == pytest.approx([math.exp(-(k - 1) / 7) for k in range(16)])


def test_a_slot_without_a_label_has_no_weight_and_shifts_no_other():
    labelled = torch.rand(2, 16, generator=torch.Generator().manual_seed(0)) < 0.5
    every = ExponentialDecay(4.0)(EVERY_SLOT, NOTHING)
    assert torch.equal(ExponentialDecay(4.0)(labelled, NOTHING), every * labelled)


@pytest.mark.parametrize("settings", [Config().drafter, DrafterSettings(block_size=8, gamma=4.0)])
def test_no_default_turns_decay_off(settings):
    loss = block_loss(settings)
    assert isinstance(loss, CrossEntropy)
    weights = loss.weights(EVERY_SLOT, NOTHING)[0]
    assert (weights[1] / weights[2]).item() == pytest.approx(math.exp(1 / settings.gamma))


@pytest.mark.parametrize("gamma", ["none", "0", "-1", "nan", ""])
def test_a_gamma_that_is_none_is_refused(gamma):
    with pytest.raises(UsageError, match="gamma"):
        load_config(None, (f"drafter.gamma={gamma}",))
