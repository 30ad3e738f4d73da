"""A corpus without content in its lengths, and what the measures say of it."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from dflash.bench.learning.design_effect import combine
from dflash.bench.learning.frozen import measure_frozen
from dflash.data.store import TokenStore
from dflash.plugin_manager import PluginManager
from dflash.testing.control import write_control
from dflash.training.frozen import Pool, sample_gradients
from dflash.training.models import load_models
from dflash.training.schedule import plan_epoch

SHORT = {"shortest": 24, "longest": 90, "blind": 8}


def test_is_the_sources_text_cut_elsewhere(small_store, tmp_path):
    source = TokenStore.open(small_store)
    control = write_control(tmp_path / "control.arrow", source, seed=1, **SHORT)
    text = np.concatenate([source.tokens(row) for row in np.random.default_rng(1).permutation(len(source))])
    pieces = np.concatenate([control.tokens(row) for row in range(len(control))])
    np.testing.assert_array_equal(pieces, text[: len(pieces)])
    assert len(text) - len(pieces) < 90
    assert all(control.loss_mask(row).tolist()[7:9] == [0, 1] for row in range(len(control)))
    assert 24 <= control.lengths.min() < 30 < 80 < control.lengths.max() <= 90
    assert 0 < len(control.rows(held_out=True)) < 0.2 * len(control)
    again = write_control(tmp_path / "again.arrow", source, seed=1, **SHORT)
    assert again.fingerprint == control.fingerprint


def test_no_strategy_is_worse_than_random_there(small_store, small_config, tmp_path):
    torch.set_num_threads(1)
    store = write_control(tmp_path / "control.arrow", TokenStore.open(small_store), **SHORT)
    config = msgspec.structs.replace(
        small_config,
        drafter=msgspec.structs.replace(small_config.drafter, max_anchors=100),
        batching=msgspec.structs.replace(small_config.batching, token_budget=300),
    )
    models = load_models(config, store)
    rows = store.rows()
    found = sample_gradients(
        models.drafter, models.head, Pool(store, rows, store.lengths[rows], models.targets[0], config), config
    )
    for arm in PluginManager().arms("random,sorted,sorted:frozen=true,packed,step_window"):
        point = measure_frozen(found, plan_epoch(arm.strategy, arm.name, store, config, 0), seed=0)
        effect = combine([[point.gradient]], 0.98)
        assert effect.low < 1 < effect.high, arm.name
        assert effect.value == pytest.approx(1, abs=0.3)
