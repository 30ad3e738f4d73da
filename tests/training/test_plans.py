"""The plans of a whole run, known before its first window."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
import numpy as np
import pytest

from dflash.data.sources import open_store
from dflash.errors import PlanError, UsageError
from dflash.training.plans import plan_run
from dflash.training.schedule import plan_epoch


def changed(config, **sections):
    return msgspec.structs.replace(
        config,
        **{name: msgspec.structs.replace(getattr(config, name), **keys) for name, keys in sections.items()},
    )


def rows(window):
    return np.concatenate([rows for rows, _ in window.micro_batches])


@pytest.mark.parametrize("strategy", ["bucketed:buckets=6", "sorted", "random"])
def test_windows_of_the_run_are_those_of_its_epochs(small_config, strategy):
    config = changed(small_config, batching={"strategy": strategy}, training={"epochs": 5})
    store = open_store(config.data)
    shown = []
    plans = plan_run(config, store, lambda plan, windows: shown.append((plan.request.epoch, windows)))
    assert shown == list(enumerate(plans.windows))
    assert plans.total == sum(plans.windows) == len(list(plans.training_windows()))
    training = list(plans.training_windows())
    for epoch, count in enumerate(plans.windows):
        own = [window for window in training if window.epoch == epoch]
        assert len(own) == count
        assert sorted(np.concatenate([rows(window) for window in own])) == list(range(200)), "each once"


def test_epochs_differ_in_windows_and_all_are_counted(small_config):
    """Else a schedule made from the first epoch times their number would end early or late."""
    config = changed(small_config, training={"epochs": 30}, batching={"accumulation": 1})
    plans = plan_run(config, open_store(config.data))
    assert len(set(plans.windows)) > 1
    assert plans.total != plans.windows[0] * 30


@pytest.mark.parametrize("limit", [1, 16, 17, 18, 40])
def test_a_limit_cuts_the_last_epoch(small_config, limit):
    config = changed(small_config, training={"epochs": 5, "windows": limit})
    store = open_store(config.data)
    whole = list(plan_run(changed(config, training={"windows": None}), store).training_windows())
    plans = plan_run(config, store)
    cut = list(plans.training_windows())
    assert plans.total == len(cut) == limit
    assert all(np.array_equal(rows(one), rows(other)) for one, other in zip(cut, whole, strict=False))
    assert all(plans.windows), "an epoch without a window is not part of the run"


def test_going_on_is_the_rest(small_config):
    config = changed(small_config, training={"epochs": 3, "windows": 40})
    plans = plan_run(config, open_store(config.data))
    whole = list(plans.training_windows())
    for first in (0, 1, plans.windows[0] - 1, plans.windows[0], plans.windows[0] + 1, 39, 40):
        rest = list(plans.training_windows(first))
        assert len(rest) == 40 - first
        for one, other in zip(rest, whole[first:], strict=True):
            assert one.epoch == other.epoch and np.array_equal(rows(one), rows(other))


def test_drafters_change_neither_plans_nor_the_samples_of_a_window(small_config):
    store = open_store(small_config.data)
    runs = []
    for drafters in (1, 2, 3, 6):
        config = changed(
            small_config, pipeline={"drafters": drafters}, batching={"accumulation": 6 // drafters}
        )
        runs.append(plan_run(changed(config, training={"epochs": 2}), store))
    assert len({run.digests for run in runs}) == 1
    for one, *others in zip(*(run.training_windows() for run in runs), strict=True):
        assert all(np.array_equal(np.sort(rows(one)), np.sort(rows(other))) for other in others)


def test_a_run_without_a_window_is_refused(small_config):
    config = changed(small_config, batching={"accumulation": 1000, "tail": "drop"})
    with pytest.raises(UsageError, match="no window"):
        plan_run(config, open_store(config.data))


@dataclass
class Fickle:
    """What has become of a strategy that plans otherwise when it is asked again."""

    strategy: object

    def plan(self, lengths, request):
        return self.strategy.plan(lengths, replace(request, seed=request.seed + 1))


def test_a_strategy_that_changes_its_mind_is_found(small_config):
    store = open_store(small_config.data)
    plans = plan_run(changed(small_config, training={"epochs": 1}), store)
    fickle = replace(plans, arm=replace(plans.arm, strategy=Fickle(plans.arm.strategy)))
    with pytest.raises(PlanError, match="made another plan of epoch 0"):
        next(fickle.training_windows())
    assert plan_epoch(plans.arm.strategy, "random", store, small_config, 0).plan.digest() == plans.digests[0]
