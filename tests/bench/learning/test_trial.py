"""Learning trials on a small target: what they share, and that they are the trainer's own runs."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

from dflash.bench.learning.analysis import unequal
from dflash.bench.learning.exchange import LearningTrialRequest
from dflash.bench.learning.sets import learning_sets
from dflash.bench.learning.stability import NORM_RISE, spikes
from dflash.bench.learning.trial import learning_trial
from dflash.data.sources import open_store
from dflash.errors import NonFiniteError, TrialError
from dflash.models.drafter import TargetHead
from dflash.pipeline.stages import load, read_features
from dflash.plugin_manager import PluginManager
from dflash.training.models import load_models
from dflash.training.run import training_run
from dflash.training.schedule import in_training_order, plan_epoch
from dflash.training.step import DrafterStep

TOKENS = 5_000


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def trial(config, strategy, measured=(), **request):
    return learning_trial(LearningTrialRequest(strategy, config, TOKENS, 3_000, measured, **request))


@pytest.fixture
def random_trial(small_config):
    return trial(small_config, "random", ("random", "sorted", "packed"))


def test_all_strategies_see_the_same(small_config, random_trial):
    for strategy in ("sorted", "packed"):
        other = trial(small_config, strategy)
        assert unequal(random_trial, other) is None
        assert other.curve[-1].loss != random_trial.curve[-1].loss
    assert random_trial.counts.real_tokens == sum(w.real_tokens for w in random_trial.windows) >= TOKENS
    assert [random_trial.curve[0].tokens, random_trial.curve[-1].tokens] == [
        0,
        random_trial.counts.real_tokens,
    ]
    assert random_trial.curve[-1].loss < random_trial.curve[0].loss - 0.03
    assert len(random_trial.curve[0].loss_by_bin) == 3


def test_what_differs_is_said(small_config, random_trial):
    more = replace(random_trial, counts=replace(random_trial.counts, real_tokens=1))
    assert unequal(random_trial, more).startswith("it saw 1 real tokens, random ")
    assert unequal(random_trial, replace(random_trial, first_weights="")) == "the first weights differ"
    assert unequal(random_trial, replace(random_trial, curve=random_trial.curve[1:])) is not None


def test_a_trial_repeats_to_the_last_bit(small_config, random_trial):
    again = trial(small_config, "random")
    assert (again.curve, again.windows) == (random_trial.curve, random_trial.windows)


def test_a_trial_is_what_the_pipeline_trains(small_config, random_trial):
    store = open_store(small_config.data)
    rows, pool = learning_sets(store, small_config, TOKENS, 3_000)
    assert not set(rows.tolist()) & set(pool.tolist())
    arm = PluginManager().arms("random")[0]
    epoch = plan_epoch(arm.strategy, arm.name, store, small_config, 0, rows=rows)
    windows = [epoch.window(number) for number in range(epoch.plan.windows)]
    models = load_models(small_config, store)
    with training_run(small_config, store, models, in_training_order(windows, [], []), len(windows)) as run:
        losses = [result.loss for result in run.results]
    assert [window.loss for window in random_trial.windows] == pytest.approx(losses, rel=1e-4)


def test_gradients_are_measured_at_three_points(random_trial):
    assert set(random_trial.frozen) == {"random", "sorted", "packed"}
    for points in random_trial.frozen.values():
        assert len(points) == 3
        assert all(point.gradient.windows >= 3 for point in points)
        # The same windows at other weights are not the same gradients.
        assert len({point.gradient.log for point in points}) == 3
    assert all(point.noise_scale is None for point in random_trial.frozen["sorted"])
    assert "random draws" in random_trial.frozen["sorted"][0].noise_scale_withheld


def test_a_plan_without_a_window_is_refused(small_config):
    batching = msgspec.structs.replace(small_config.batching, tail="drop", accumulation=200)
    with pytest.raises(TrialError, match="random plans no whole window"):
        trial(msgspec.structs.replace(small_config, batching=batching), "random")


def run_of(config, spoil, windows=60):
    """Losses and gradient norms of a run over small windows of random samples, with one of them spoiled."""
    store = open_store(config.data)
    models = load_models(config, store)
    # A random head says so little that no weights could make its loss rise; this one is as sure as any.
    head = TargetHead(models.head.embedding_VH, 30 * models.head.head_VH)
    step = DrafterStep(models.drafter, head, config, windows, diversity=False)
    rng, rows = np.random.default_rng(0), store.rows()
    losses, norms = [], []
    for number in range(windows):
        chosen = rng.choice(rows, 12, replace=False)
        window = [(chosen[:6], store.lengths[chosen[:6]]), (chosen[6:], store.lengths[chosen[6:]])]
        result = None
        for work in in_training_order([_window(window)], [], []):
            output = read_features(load(work, store, config.drafter, seed=0), models.targets[0])
            coroutine = step(spoil(number, work, output, step))
            with pytest.raises(StopIteration) as stop:
                coroutine.send(None)
            result = stop.value.value
        losses.append(result.loss)
        norms.append(result.gradient_norm)
    return losses, norms


def _window(micro_batches):
    from dflash.training.schedule import Window

    return Window(0, "padded", micro_batches)


AT = 40


def test_a_smooth_run_has_no_spike(small_config):
    losses, norms = run_of(small_config, lambda number, work, output, step: output)
    assert spikes(losses) == spikes(norms, NORM_RISE) == []


def test_a_poisoned_micro_batch_is_a_spike(small_config):
    def spoil(number, work, output, step):
        if number != AT or work.closes:
            return output
        slots = output.features.slots
        wrong = replace(slots, label_NB=np.where(slots.labelled_NB, 95, slots.label_NB))
        return replace(output, features=replace(output.features, slots=wrong))

    losses, norms = run_of(small_config, spoil)
    assert AT in spikes(losses) + spikes(norms, NORM_RISE)


def test_a_jump_of_the_learning_rate_is_a_spike(small_config):
    def spoil(number, work, output, step):
        jump = 300.0 if number == AT else 1.0
        settings = msgspec.structs.replace(
            small_config.optimizer, learning_rate=jump * small_config.optimizer.learning_rate
        )
        step._optimizer._settings = settings
        return output

    losses, norms = run_of(small_config, spoil)
    found = spikes(losses) + spikes(norms, NORM_RISE)
    assert {AT + 1, AT + 2} & set(found)


def test_what_is_not_finite_ends_the_trial_at_once(small_config, monkeypatch):
    from dflash.bench.learning import trial as module

    def broken(config, store):
        models = load_models(config, store)
        with torch.no_grad():
            models.drafter.fc.weight[0, 0] = float("nan")
        return models

    monkeypatch.setattr(module, "load_models", broken)
    with pytest.raises(NonFiniteError):
        trial(small_config, "random")
