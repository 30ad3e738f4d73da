from __future__ import annotations

import json

import torch
from oracles import random_drafter, small_shape
from safetensors.torch import load_file

from dflash.models.export import write_drafter


def test_weights_and_config_are_as_published(tmp_path):
    drafter = random_drafter(small_shape()).float()
    write_drafter(tmp_path / "drafter", drafter)
    weights = load_file(tmp_path / "drafter" / "model.safetensors")
    assert weights.keys() == drafter.state_dict().keys()
    assert all(torch.equal(weights[name], weight) for name, weight in drafter.state_dict().items())

    config = json.loads((tmp_path / "drafter" / "config.json").read_text())
    assert config["architectures"] == ["DFlashDraftModel"]
    assert config["block_size"] == config["dflash_config"]["block_size"] == 5
    assert config["dflash_config"] == {"block_size": 5, "mask_token_id": 60, "target_layer_ids": [1, 3, 5]}
    assert config["num_target_layers"] == 8 and config["num_hidden_layers"] == 2
    assert config["layer_types"] == ["full_attention"] * 2
    assert sorted(file.name for file in (tmp_path / "drafter").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
