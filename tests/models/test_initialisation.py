from __future__ import annotations

import pytest
import torch

from dflash.config import DrafterSettings
from dflash.models.drafter import Drafter
from dflash.models.initialisation import initialise
from dflash.models.shape import shape_for_target
from dflash.models.target import load_causal_lm


def drafter(folder, seed=0, **settings):
    model = load_causal_lm(folder)
    shape = shape_for_target(folder, DrafterSettings(**settings))
    return initialise(Drafter(shape), model, seed), model


def test_keys_and_values_are_those_of_the_targets_own_layer(small_target):
    """Of the last feature alone, the first layer makes what the target's layer makes of the same states."""
    mine, model = drafter(small_target, layers=2)
    with torch.no_grad():
        mine.fc.weight[:, :-24] = 0
        mine.fc.weight[:, -24:] = torch.eye(24)
        states = torch.randn(9, 24, generator=torch.Generator().manual_seed(0))
        features = torch.cat([torch.randn(9, 4 * 24), states], dim=1)
        its = model.model.layers[6]
        normed = its.input_layernorm(states)
        context = mine.hidden_norm(mine.fc(features))
        torch.testing.assert_close(context, normed)
        for name in ("k_proj", "v_proj"):
            projected = getattr(its.self_attn, name)(normed)
            torch.testing.assert_close(getattr(mine.layers[0].self_attn, name)(context), projected)


def test_the_seed_decides_what_the_target_does_not(small_target):
    (one, _), (same, _), (other, _) = (drafter(small_target, seed) for seed in (1, 1, 2))
    assert torch.equal(one.fc.weight, same.fc.weight)
    assert not torch.equal(one.fc.weight, other.fc.weight)
    assert torch.equal(one.layers[0].mlp.up_proj.weight, other.layers[0].mlp.up_proj.weight)


@pytest.mark.parametrize("settings", [{"layers": 8}, {"layers": 10}, {"intermediate_size": 16}])
def test_other_sizes_take_what_fits(small_target, settings):
    mine, model = drafter(small_target, **settings)
    assert all(bool(weight.isfinite().all()) for weight in mine.parameters())
    fitted = mine.layers[0].self_attn.q_proj.weight
    assert any(torch.equal(fitted, layer.self_attn.q_proj.weight) for layer in model.model.layers)
    if "intermediate_size" in settings:
        spread = mine.layers[0].mlp.down_proj.weight.std().item()
        assert spread == pytest.approx(16**-0.5, rel=0.2), "1 / sqrt(fan-in)"
