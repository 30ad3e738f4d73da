from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
import torch

from dflash.data.sources import open_store
from dflash.errors import UsageError
from dflash.pipeline.stages import load
from dflash.pipeline.work import Work
from dflash.plugin_manager import PluginManager
from dflash.training.preflight import WorstMicroBatches, try_worst
from dflash.training.run import load_models, training_run
from dflash.training.schedule import held_out_micro_batches, in_training_order, plan_epoch
from dflash.training.step import WindowResult
from dflash.training.trainer import train_drafter


def changed(config, **sections):
    return msgspec.structs.replace(
        config,
        **{name: msgspec.structs.replace(getattr(config, name), **keys) for name, keys in sections.items()},
    )


def plans(config, store, epochs=3):
    arm = PluginManager().arms(config.batching.strategy)[0]
    return [plan_epoch(arm.strategy, arm.name, store, config, epoch) for epoch in range(epochs)]


def gathered(config, store, windows=None):
    worst = WorstMicroBatches(store, config)
    for epoch in plans(config, store):
        worst.add(epoch, epoch.plan.windows if windows is None else windows)
    return worst


def sizes(loaded, config):
    """(padded tokens, tokens x longest, blocks of a chunk, blocks x longest) of a loaded micro-batch."""
    longest = int(loaded.work.lengths_D.max(initial=0))
    blocks = min(loaded.counts.anchor_slots, config.drafter.anchor_budget // config.drafter.block_size)
    return loaded.counts.padded_tokens, loaded.counts.padded_tokens * longest, blocks, blocks * longest


@pytest.mark.parametrize("strategy", ["random", "bucketed", "packed"])
@pytest.mark.parametrize("anchor_budget", [80, 4096])
@pytest.mark.parametrize("windows", [1, None])
def test_no_micro_batch_of_any_epoch_is_worse_than_those_tried(
    small_config, strategy, anchor_budget, windows
):
    """By loading every single one of them."""
    config = changed(small_config, batching={"strategy": strategy}, drafter={"anchor_budget": anchor_budget})
    store = open_store(config.data)

    def loaded(epoch, layout, rows, lengths):
        work = Work(0, "train", epoch, 0, layout, True, rows, lengths)
        return sizes(load(work, store, config.drafter, seed=0), config)

    every = [
        loaded(epoch.request.epoch, epoch.plan.layout, *micro_batch)
        for epoch in plans(config, store)
        for window in range(epoch.plan.windows if windows is None else windows)
        for micro_batch in epoch.window(window).micro_batches
    ]
    worst = gathered(config, store, windows)
    tried = {
        stage: [loaded(work.epoch, work.layout, work.rows_D, work.lengths_D) for work in worst.works(stage)]
        for stage in ("target", "drafter")
    }
    most = [max(column) for column in zip(*every, strict=True)]
    assert max(size[0] for size in tried["target"]) == most[0]
    assert max(size[1] for size in tried["target"]) == most[1]
    assert max(size[2] for size in tried["drafter"]) == most[2]
    assert max(size[3] for size in tried["drafter"]) == most[3]
    assert all(1 <= len(tried[stage]) <= 2 for stage in tried)


def test_the_window_that_is_named_holds_the_micro_batch(small_config):
    store = open_store(small_config.data)
    epochs = plans(small_config, store)
    for stage in ("target", "drafter"):
        for work in gathered(small_config, store).works(stage):
            window = epochs[work.epoch].window(work.window)
            assert any(np.array_equal(rows, work.rows_D) for rows, _ in window.micro_batches)


def test_a_plan_without_samples_asks_for_nothing(small_config):
    store = open_store(small_config.data)
    worst = WorstMicroBatches(store, small_config)
    worst.add(plans(small_config, store)[0], 0)
    assert worst.works("target") == worst.works("drafter") == []


@pytest.mark.parametrize("strategy", ["random", "packed"])
def test_training_is_the_same_to_the_last_bit_with_and_without(small_config, strategy):
    config = changed(small_config, batching={"strategy": strategy})
    store = open_store(config.data)
    epoch = plans(config, store, 1)[0]

    def trained(preflight):
        models = load_models(config, store)
        torch.manual_seed(0)
        if preflight:
            before = {name: weight.clone() for name, weight in models.drafter.state_dict().items()}
            assert "peak" in try_worst(models, store, config, gathered(config, store))
            assert all(
                torch.equal(weight, before[name]) for name, weight in models.drafter.state_dict().items()
            )
            assert all(weight.grad is None for weight in models.drafter.parameters())
        work = in_training_order(
            (epoch.window(window) for window in range(4)), held_out_micro_batches(store, config), [0, 4]
        )
        with training_run(config, store, models, work, 4, diversity=True) as run:
            results = [
                (r.loss, r.gradient_norm) if isinstance(r, WindowResult) else r.loss for r in run.results
            ]
        weights = {name: weight.numpy().tobytes() for name, weight in models.drafter.state_dict().items()}
        return results, weights, torch.random.get_rng_state().tolist()

    assert trained(preflight=True) == trained(preflight=False)


def test_a_target_that_needs_more_than_there_is_names_micro_batch_and_way_out(small_config):
    store = open_store(small_config.data)
    models = load_models(small_config, store)
    models.targets[0].features = lambda *_: torch.empty(10**15)
    worst = gathered(small_config, store)
    work = worst.works("target")[0]
    tokens = len(work.rows_D) * work.lengths_D.max()
    with pytest.raises(UsageError) as refused:
        try_worst(models, store, small_config, worst)
    said = str(refused.value)
    assert f"{len(work.rows_D)} samples of at most {work.lengths_D.max()} tokens, {tokens} padded" in said
    assert f"epoch {work.epoch}, window {work.window}:" in said and f"store row {work.rows_D[0]}" in said
    assert "the target" in said and "4000000000000000 bytes more were asked for" in said
    assert "lower batching.token_budget (now 400)" in said and "anchor_budget" not in said
    assert "\n" not in said


def test_a_gpus_own_words_are_understood(small_config):
    store = open_store(small_config.data)
    models = load_models(small_config, store)

    def features(*_):
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total capacity of 79.10 GiB "
            "of which 1.19 GiB is free."
        )

    models.targets[0].features = features
    with pytest.raises(UsageError, match=r"2\.32 GiB more were asked for"):
        try_worst(models, store, small_config, gathered(small_config, store))


def test_other_errors_keep_their_name(small_config):
    store = open_store(small_config.data)
    models = load_models(small_config, store)

    def features(*_):
        raise RuntimeError("something else")

    models.targets[0].features = features
    with pytest.raises(RuntimeError, match="something else"):
        try_worst(models, store, small_config, gathered(small_config, store))


def test_features_in_flight_and_blocks_count_as_well(small_config, tmp_path):
    """So many micro-batches in flight that no memory holds their features; nothing has been written."""
    config = changed(small_config, pipeline={"depth": 10**12})
    with pytest.raises(
        UsageError, match=r"the drafter .*anchor_budget .*pipeline\.depth \(now 1000000000000\)"
    ):
        train_drafter(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    store = open_store(config.data)
    models = load_models(config, store)
    with pytest.raises(UsageError):
        try_worst(models, store, config, gathered(config, store))
    assert all(weight.grad is None for weight in models.drafter.parameters())


def test_a_run_says_what_it_tried_and_records_its_target(small_config, tmp_path, capsys):
    config = changed(small_config, training={"windows": 2})
    assert train_drafter(config, tmp_path / "run") == 0
    assert capsys.readouterr().err.count("memory preflight: peak") == 1
    target = json.loads((tmp_path / "run" / "target.json").read_text())
    assert (target["architecture"], target["layers"], target["vocabulary"]) == ("Qwen3ForCausalLM", 8, 97)
    assert len(target["weight_hash"]) == len(target["config_hash"]) == 64
    assert target["perplexity"] == pytest.approx(97, rel=0.1), "its weights are random"


def test_a_random_target_is_refused_unless_it_is_asked_for(small_config, tmp_path):
    config = changed(small_config, data={"allow_untrained_target": False})
    with pytest.raises(UsageError, match=r"no better than a guess.*data\.allow_untrained_target=true"):
        train_drafter(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
