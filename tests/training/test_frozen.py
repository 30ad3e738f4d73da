"""Window gradients put together from samples are the trainer's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dflash.data.sources import open_store
from dflash.models.loss import block_loss
from dflash.pipeline.stages import load, read_features
from dflash.pipeline.work import Work
from dflash.training.frozen import Pool, loss_sums, sample_gradients
from dflash.training.micro_batch import add_gradient
from dflash.training.models import load_models
from dflash.training.sketch import GradientSketch


@pytest.fixture
def world(small_config):
    torch.set_num_threads(1)
    store = open_store(small_config.data)
    return small_config, store, load_models(small_config, store)


def batch(world, rows, layout):
    config, store, models = world
    work = Work(0, "train", 0, 0, layout, True, rows, store.lengths[rows])
    return read_features(load(work, store, config.drafter, config.training.seed), models.targets[0]).features


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_samples_add_up_to_any_window(world, layout):
    config, store, models = world
    rows = np.array([17, 3, 90, 41, 77, 5], np.int64)
    pool = Pool(store, rows, store.lengths[rows], models.targets[0], config)
    found = sample_gradients(models.drafter, models.head, pool, config)
    sketch = GradientSketch(models.drafter.parameters())
    loss = block_loss(config.drafter)
    sums = [
        add_gradient(models.drafter, models.head, batch(world, part, layout), loss=loss, anchor_budget=64)
        for part in (rows[:2], rows[2:])
    ]
    scale = np.abs(found.sketches_SK.sum(0)).max()
    np.testing.assert_allclose(found.sketches_SK.sum(0), sketch().numpy(), atol=1e-4 * scale)
    assert found.losses_S.sum() == pytest.approx(sum(one.loss.item() for one in sums), rel=1e-5)
    assert found.weights_S.sum() == pytest.approx(sum(one.weight.item() for one in sums), rel=1e-9)


def test_features_are_kept_or_computed_again_with_the_same_result(world):
    config, store, models = world
    rows = store.rows()[:60]
    one, other = (
        sample_gradients(
            models.drafter,
            models.head,
            Pool(store, rows, store.lengths[rows], models.targets[0], config, most_bytes=most),
            config,
        )
        for most in (2**30, 0)
    )
    np.testing.assert_array_equal(one.sketches_SK, other.sketches_SK)
    assert np.all(one.losses_S[one.weights_S > 0] > 0)


def test_a_pool_can_be_read_at_other_weights(world):
    config, store, models = world
    rows = store.rows()[:8]
    pool = Pool(store, rows, store.lengths[rows], models.targets[0], config)
    before = sample_gradients(models.drafter, models.head, pool, config)
    with torch.no_grad():
        models.drafter.norm.weight.mul_(1.5)
    after = sample_gradients(models.drafter, models.head, pool, config)
    assert not np.allclose(before.losses_S, after.losses_S)
    fresh = sample_gradients(
        models.drafter, models.head, Pool(store, rows, store.lengths[rows], models.targets[0], config), config
    )
    np.testing.assert_array_equal(after.sketches_SK, fresh.sketches_SK)


def test_losses_without_a_gradient_are_the_same_sums(world):
    config, store, models = world
    rows = store.rows()[:10]
    pool = Pool(store, rows, store.lengths[rows], models.targets[0], config)
    found = sample_gradients(models.drafter, models.head, pool, config)
    loss, weight = loss_sums(models.drafter, models.head, [batch(world, rows, "padded")], config)
    assert loss == pytest.approx(found.losses_S.sum(), rel=1e-5)
    assert weight == pytest.approx(found.weights_S.sum(), rel=1e-9)
