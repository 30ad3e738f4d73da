"""The whole line on a small target: what may and what may not change a result."""

from __future__ import annotations

import threading

import msgspec
import numpy as np
import pytest
import torch

from dflash.data.sources import open_store
from dflash.errors import ExitCode, StageError
from dflash.pipeline.stages import load
from dflash.pipeline.work import Work
from dflash.plugin_manager import PluginManager
from dflash.training.run import load_models, training_run
from dflash.training.schedule import Window, held_out_micro_batches, in_training_order, plan_epoch
from dflash.training.step import WindowResult

WINDOWS = 6


def changed(config, **sections):
    return msgspec.structs.replace(
        config,
        **{name: msgspec.structs.replace(getattr(config, name), **keys) for name, keys in sections.items()},
    )


def train(config, spoil=None):
    """(window losses, held-out losses, final weights, threads seen) of a short run."""
    store = open_store(config.data)
    arm = PluginManager().arms(config.batching.strategy)[0]
    epoch = plan_epoch(arm.strategy, arm.name, store, config, 0)
    models = load_models(config, store)
    if spoil:
        spoil(models)
    work = in_training_order(
        (epoch.window(window) for window in range(WINDOWS)),
        held_out_micro_batches(store, config),
        [0, 3, WINDOWS],
    )
    with training_run(config, store, models, work, WINDOWS, diversity=True) as run:
        results = list(run.results)
        threads = {thread.name for thread in threading.enumerate()}
    windows = [r for r in results if isinstance(r, WindowResult)]
    evaluations = [r for r in results if not isinstance(r, WindowResult)]
    return windows, evaluations, models.drafter.state_dict(), threads


def figures(run):
    windows, evaluations, weights, _ = run
    return (
        [(w.window, w.loss, w.weight, w.gradient_norm, w.gradient_diversity, w.counts) for w in windows],
        [(e.window, e.loss, e.accuracy_B) for e in evaluations],
        {name: weight.numpy().tobytes() for name, weight in weights.items()},
    )


@pytest.fixture(scope="module")
def reference(request):
    return {}


@pytest.mark.parametrize("engine", ["inline", "thread"])
@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize(("prefetch", "depth"), [(1, 1), (2, 4)])
def test_losses_and_weights_are_the_same_to_the_last_bit(
    small_config, reference, engine, targets, prefetch, depth
):
    """Whatever the engine, the number of targets and prefetchers, and the depth."""
    pipeline = {"engine": engine, "targets": targets, "prefetch": prefetch, "depth": depth}
    found = figures(train(changed(small_config, pipeline=pipeline)))
    assert found == reference.setdefault("figures", found)
    assert [window for window, *_ in found[0]] == list(range(WINDOWS))
    assert [window for window, *_ in found[1]] == [0, 3, WINDOWS]


def test_random_delays_change_nothing(small_config, reference, monkeypatch):
    import time

    from dflash.models.target import Target

    rng = np.random.default_rng(0)
    features = Target.features

    def slow(self, *arguments):
        time.sleep(float(rng.uniform(0, 0.02)))
        return features(self, *arguments)

    monkeypatch.setattr(Target, "features", slow)
    found = figures(train(changed(small_config, pipeline={"targets": 3, "depth": 4})))
    assert found == reference.setdefault("figures", found)


def test_the_seed_changes_the_run(small_config):
    one, other = (train(changed(small_config, training={"seed": seed}))[0] for seed in (0, 1))
    assert [w.loss for w in one] != [w.loss for w in other]


def test_training_lowers_the_loss(small_config):
    """Of random text only the frequencies can be learned: from about ln V downwards."""
    _, evaluations, _, _ = train(changed(small_config, optimizer={"learning_rate": 1e-2}))
    losses = [evaluation.loss for evaluation in evaluations]
    assert losses[0] == pytest.approx(np.log(97), rel=0.05)
    assert losses[-1] < losses[0]


def test_a_samples_anchors_do_not_depend_on_its_batch_mates(small_config):
    store = open_store(small_config.data)

    def anchors(rows):
        rows = np.array(rows)
        work = Work(0, "train", 2, 0, "padded", True, rows, store.lengths[rows])
        slots = load(work, store, small_config.drafter, seed=5).slots
        return {row: slots.position_N[slots.document_N == d].tolist() for d, row in enumerate(rows.tolist())}

    everyone = anchors(range(30))
    assert anchors([7]) == {7: everyone[7]}
    assert anchors([29, 3]) == {29: everyone[29], 3: everyone[3]}


def test_counts_are_those_of_the_samples(small_config):
    store = open_store(small_config.data)
    rows = np.array([3, 11, 40])
    lengths = store.lengths[rows]
    loaded = load(Work(0, "train", 0, 0, "padded", True, rows, lengths), store, small_config.drafter, 0)
    assert loaded.counts.samples == 3
    assert loaded.counts.real_tokens == lengths.sum()
    assert loaded.counts.padded_tokens == 3 * lengths.max()
    assert loaded.counts.supervised_tokens == sum(int(store.loss_mask(row).sum()) for row in rows)
    covered = {
        (document, position + k)
        for document, position, labelled in zip(
            loaded.slots.document_N, loaded.slots.position_N, loaded.slots.labelled_NB, strict=True
        )
        for k in np.flatnonzero(labelled)
    }
    assert loaded.counts.covered_tokens == len(covered)
    assert loaded.counts.loss_tokens == loaded.slots.labelled_NB.sum()
    assert loaded.counts.anchor_slots == len(loaded.slots)


def poison(row_tokens):
    """Make the target give NaN for every document that starts with these tokens."""

    def spoil(models):
        for target in models.targets:
            clean = target.features

            def features(ids, lengths, clean=clean):
                found = clean(ids, lengths)
                starts = np.cumsum(lengths) - lengths
                for row, start in enumerate(starts):
                    if np.array_equal(ids[row, : len(row_tokens)], row_tokens):
                        found[start] = float("nan")
                return found

            target.features = features

    return spoil


def test_a_sample_with_bad_features_is_left_out_and_named(small_config):
    store = open_store(small_config.data)
    epoch = plan_epoch(PluginManager().arms("random")[0].strategy, "random", store, small_config, 0)
    bad = int(epoch.window(2).micro_batches[0][0][0])
    windows, _, weights, _ = train(
        changed(small_config, training={"max_bad_samples": 1}), poison(store.tokens(bad))
    )
    assert {w.window: w.bad_rows for w in windows if w.bad_rows} == {2: [bad]}
    assert all(bool(torch.isfinite(weight).all()) for weight in weights.values())


def test_too_many_bad_samples_fail_the_run_with_its_cause(small_config):
    def spoil(models):
        for target in models.targets:
            clean = target.features
            target.features = lambda ids, lengths, clean=clean: clean(ids, lengths) * float("nan")

    with pytest.raises(StageError, match=r"drafter-0.*micro-batch 1.*not finite.*max_bad_samples") as failed:
        train(small_config, spoil)
    assert failed.value.exit_code == ExitCode.TRIAL_FAILED


def test_a_target_that_fails_ends_everything_with_the_cause(small_config):
    def spoil(models):
        def features(*_):
            raise RuntimeError("out of memory, say")

        models.targets[0].features = features

    before = threading.active_count()
    with pytest.raises(StageError, match=r"target-0.*micro-batch 0.*out of memory, say") as failed:
        train(small_config, spoil)
    assert isinstance(failed.value.__cause__, RuntimeError)
    assert threading.active_count() == before


def test_a_window_without_weight_takes_no_step(small_config):
    """Its samples have no anchor; the schedule advances and it is counted."""
    store = open_store(small_config.data)
    models = load_models(small_config, store)
    before = {name: weight.clone() for name, weight in models.drafter.state_dict().items()}
    empty = np.zeros(0, np.int64)
    work = in_training_order([Window(0, "padded", [(empty, empty), (empty, empty)])], [], [])
    with training_run(small_config, store, models, work, 1, diversity=True) as run:
        (result,) = run.results
    assert isinstance(result, WindowResult)
    assert (result.loss, result.weight, result.gradient_diversity) == (None, 0.0, None)
    assert all(torch.equal(weight, before[name]) for name, weight in models.drafter.state_dict().items())


def test_work_is_numbered_and_closed_once_per_window():
    one = (np.array([1]), np.array([5]))
    training = [Window(epoch, "packed", [one, one]) for epoch in (0, 0, 1)]
    work = list(in_training_order(training, [one, one, one], [0, 2, 3]))
    assert [w.id for w in work] == list(range(6 + 9))
    kinds = [(w.purpose, w.window) for w in work if w.closes]
    assert kinds == [
        ("evaluate", 0),
        ("train", 0),
        ("train", 1),
        ("evaluate", 2),
        ("train", 2),
        ("evaluate", 3),
    ]
    assert {(w.epoch, w.layout) for w in work if w.purpose == "evaluate"} == {(0, "padded")}
    assert [(w.epoch, w.layout) for w in work if w.purpose == "train"][-1] == (1, "packed")
    assert not [w for w in in_training_order(training, [], [0, 1]) if w.purpose == "evaluate"]
