"""A corpus without content in its lengths, and what the measures say of it."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from dflash.bench.learning.design_effect import combine
from dflash.bench.learning.frozen import measure_frozen
from dflash.data.store import StoreSample, TokenStore, write_store
from dflash.plugin_manager import PluginManager
from dflash.testing.control import write_control
from dflash.training.frozen import Pool, sample_gradients
from dflash.training.models import load_models
from dflash.training.schedule import plan_epoch

SHORT = {"shortest": 24, "longest": 48, "blind": 8}


def test_is_the_sources_text_cut_elsewhere(small_store, tmp_path):
    source = TokenStore.open(small_store)
    control = write_control(tmp_path / "control.arrow", source, seed=1, **SHORT)
    text = np.concatenate([source.tokens(row) for row in np.random.default_rng(1).permutation(len(source))])
    pieces = np.concatenate([control.tokens(row) for row in range(len(control))])
    np.testing.assert_array_equal(pieces, text[: len(pieces)])
    assert len(text) - len(pieces) < 48
    assert all(
        np.flatnonzero(control.loss_mask(row)).tolist() == [*range(8, 24)] for row in range(len(control))
    )
    assert 24 <= control.lengths.min() < 28 < 44 < control.lengths.max() <= 48
    assert 0 < len(control.rows(held_out=True)) < 0.2 * len(control)
    again = write_control(tmp_path / "again.arrow", source, seed=1, **SHORT)
    assert again.fingerprint == control.fingerprint


def test_no_gradient_depends_on_the_length_of_its_piece(control, small_config, tmp_path):
    """The same pieces without what follows their last label have the same gradients."""

    def cut():
        for row in range(len(control)):
            tokens, mask = control.sample(row)
            yield StoreSample(tokens[:24], mask[:24], control.name(row), False)

    write_store(tmp_path / "cut.arrow", cut(), {})
    whole, short = (
        gradients_of(store, small_config) for store in (control, TokenStore.open(tmp_path / "cut.arrow"))
    )
    np.testing.assert_array_equal(whole.weights_S, short.weights_S)
    assert not np.array_equal(whole.tokens_S, short.tokens_S)
    np.testing.assert_allclose(
        whole.sketches_SK, short.sketches_SK, atol=1e-5 * float(np.abs(short.sketches_SK).max())
    )


def test_no_strategy_is_worse_than_random_there(control, small_config):
    found = gradients_of(control, small_config)
    rows = np.arange(len(control))
    for arm in PluginManager().arms("random,sorted,sorted:frozen=true,packed,step_window"):
        plan = plan_epoch(arm.strategy, arm.name, control, small_config, 0, 1, rows)
        effect = combine([[measure_frozen(found, plan, seed=0).gradient]], 0.98)
        assert effect.low < 1.04 and effect.high > 1, arm.name
        assert effect.value == pytest.approx(1, abs=0.3)


@pytest.fixture
def control(small_store, tmp_path):
    return write_control(tmp_path / "control.arrow", TokenStore.open(small_store), **SHORT)


@pytest.fixture
def small_config(small_config):
    return msgspec.structs.replace(
        small_config, batching=msgspec.structs.replace(small_config.batching, token_budget=300)
    )


def gradients_of(store, config):
    torch.set_num_threads(1)
    models, rows = load_models(config, store), np.arange(len(store))
    pool = Pool(store, rows, store.lengths[rows], models.targets[0], config)
    return sample_gradients(models.drafter, models.head, pool, config)
