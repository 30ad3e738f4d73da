"""The formulas against torch's own counter, which watches the operations themselves."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dflash.bench.flops import Sizes, target_flops, window_drafter_flops, window_target_flops
from dflash.bench.trial_figures import of_the_plan
from dflash.data.sources import open_store
from dflash.models.loss import block_loss
from dflash.pipeline.stages import load, read_features
from dflash.pipeline.work import Work
from dflash.plugin_manager import PluginManager
from dflash.training.micro_batch import add_gradient
from dflash.training.models import load_models
from dflash.training.schedule import Window, plan_epoch


def planned(config, strategy="random"):
    store = open_store(config.data)
    return store, plan_epoch(PluginManager().arms(strategy)[0].strategy, strategy, store, config, epoch=0)


def counted(window, store, config, models):
    """Operations of the target and of the drafter, as torch sees them."""
    of_target = of_drafter = 0
    for rows, lengths in window.micro_batches:
        work = Work(0, "train", window.epoch, 0, window.layout, True, rows, lengths)
        # The first packed forward pass tries the target on two documents before.
        read_features(load(work, store, config.drafter, config.training.seed), models.targets[0])
        # Of the CPU's fused attention the counter knows nothing, of the products it is made of all.
        with FlopCounterMode(display=False) as target, sdpa_kernel(SDPBackend.MATH):
            output = read_features(load(work, store, config.drafter, config.training.seed), models.targets[0])
        with FlopCounterMode(display=False) as drafter:
            add_gradient(
                models.drafter,
                models.head,
                output.features,
                loss=block_loss(config.drafter),
                anchor_budget=10**9,
            )
        of_target += target.get_total_flops()
        of_drafter += drafter.get_total_flops()
    return of_target, of_drafter


@pytest.mark.parametrize("strategy", ["random", "packed"])
def test_the_target_costs_what_torch_counts(small_config, strategy):
    store, epoch = planned(small_config, strategy)
    models, sizes = load_models(small_config, store), Sizes.of(small_config)
    for number in (0, epoch.plan.windows - 1):
        window = epoch.window(number)
        assert window_target_flops(window, sizes) == counted(window, store, small_config, models)[0]


def test_a_plan_costs_what_its_windows_cost(small_config):
    for strategy in ("random", "packed"):
        _, epoch = planned(small_config, strategy)
        sizes = Sizes.of(small_config)
        windows = [window_target_flops(epoch.window(number), sizes) for number in range(epoch.plan.windows)]
        found = of_the_plan(epoch, sizes)["target_flops_per_token"]
        assert found == sum(windows) / epoch.lengths.sum()


def test_the_drafter_costs_what_torch_counts(small_config):
    """Exactly, where no scores are wasted: one block in each document, all at the same position."""
    one_block = msgspec.structs.replace(
        small_config, drafter=msgspec.structs.replace(small_config.drafter, max_anchors=1)
    )
    store, sizes = open_store(one_block.data), Sizes.of(one_block)
    models = load_models(one_block, store)
    rows = store.rows(held_out=False)
    by_position = {}
    for row in rows.tolist():
        work = Work(0, "train", 0, 0, "padded", True, np.array([row]), store.lengths[[row]])
        slots = load(work, store, one_block.drafter, one_block.training.seed).slots
        by_position.setdefault(tuple(slots.position_N.tolist()), []).append(row)
    alike = np.array(max(by_position.values(), key=len))
    assert len(alike) >= 3
    window = Window(0, "padded", [(alike, store.lengths[alike])])
    ours = window_drafter_flops(window, store, one_block, sizes)
    position = max(by_position, key=lambda key: len(by_position[key]))[0]
    again = len(alike) * scores_of_a_block(models.drafter.shape, position)
    assert counted(window, store, one_block, models)[1] == ours + again


def scores_of_a_block(shape, position):
    """What the backward pass computes a second time, because no scores are kept."""
    width = shape.heads * shape.head_dim
    return shape.layers * 2 * shape.block_size * (position + shape.block_size) * width


def test_no_more_than_the_scores_that_grouping_wastes_is_left_out(small_config):
    """A group computes its longest prefix for all of its blocks, and their scores a second time."""
    store, epoch = planned(small_config)
    models, sizes = load_models(small_config, store), Sizes.of(small_config)
    window = epoch.window(0)
    ours = window_drafter_flops(window, store, small_config, sizes)
    theirs = counted(window, store, small_config, models)[1]
    assert ours < theirs < 1.2 * ours


def test_an_empty_micro_batch_and_one_without_blocks_cost_the_drafter_nothing(small_config):
    store, sizes = open_store(small_config.data), Sizes.of(small_config)
    nothing = np.zeros(0, np.int64)
    assert window_drafter_flops(Window(0, "padded", [(nothing, nothing)]), store, small_config, sizes) == 0
    assert window_target_flops(Window(0, "padded", [(nothing, nothing)]), sizes) == 0
    two = np.array([0]), np.array([2])  # nothing in its first two tokens is supervised
    assert window_drafter_flops(Window(0, "padded", [two]), store, small_config, sizes) == 0


def test_a_mixture_of_experts_has_no_formula(small_config):
    sizes = Sizes.of(small_config)
    with_experts = Sizes(sizes.target | {"num_experts": 128}, sizes.drafter)
    assert target_flops(with_experts, 10, 100) is None
    assert window_target_flops(Window(0, "padded", [(np.array([0]), np.array([9]))]), with_experts) is None
