from __future__ import annotations

import numpy as np
import pytest

from dflash.batching.composition import measure
from dflash.batching.plan import PlanRequest
from dflash.batching.planning import make_plan
from dflash.bench.window_set import PADDING_TOLERANCE, representative_windows
from dflash.errors import TrialError
from dflash.plugin_manager import PluginManager
from dflash.training.schedule import EpochPlan


def planned(strategy, lengths, budget=4096, window=2):
    request = PlanRequest(budget, seed=0, epoch=0, drafters=1, accumulation=window, tail="spread")
    plan, used = make_plan(PluginManager().arms(strategy)[0].strategy, lengths, request)
    return EpochPlan(plan, used, request)


def heavy_tailed(count, seed=0):
    rng = np.random.default_rng(seed)
    return np.clip(rng.lognormal(4.6, 1.0, count), 16, 1024).astype(np.int64)


@pytest.mark.parametrize("strategy", ["sorted", "random", "bucketed", "sorted:order=shuffled"])
@pytest.mark.parametrize("count", [4, 6, 12])
@pytest.mark.parametrize("seed", range(3))
def test_the_set_stands_for_the_plan(strategy, count, seed):
    epoch = planned(strategy, heavy_tailed(12_000, seed))
    chosen = representative_windows(epoch, count)
    assert len(set(chosen)) == len(chosen) == count
    composition = measure(epoch.plan, epoch.lengths)
    real, padded = composition.window_real_tokens, composition.window_padded_tokens
    efficiency = real[chosen].sum() / padded[chosen].sum()
    assert abs(efficiency / composition.padding_efficiency - 1) <= PADDING_TOLERANCE
    # and not by accident: tokens and samples per window are the plan's as well
    assert real[chosen].mean() == pytest.approx(real.mean(), rel=0.1)
    rows = composition.window_rows
    assert rows[chosen].mean() == pytest.approx(rows.mean(), rel=0.15)


def test_it_is_stratified_by_length():
    """Of a plan in length order, one window comes from each part."""
    epoch = planned("sorted", heavy_tailed(12_000))
    chosen = np.array(representative_windows(epoch, 6))
    parts = np.array_split(np.arange(epoch.plan.windows), 6)
    assert [int(np.isin(chosen, part).sum()) for part in parts] == [1] * 6


def test_a_plan_with_fewer_windows_is_taken_whole():
    epoch = planned("random", heavy_tailed(60))
    assert sorted(representative_windows(epoch, 1_000)) == list(range(epoch.plan.windows))


def test_shorter_and_longer_windows_take_turns_from_the_middle_outwards():
    epoch = planned("sorted", heavy_tailed(12_000))
    mean = measure(epoch.plan, epoch.lengths).window_mean_length
    ranks = np.argsort(np.argsort(mean[representative_windows(epoch, 6)]))
    assert ranks.tolist() == [2, 3, 1, 4, 0, 5]


def test_a_set_that_cannot_stand_for_the_plan_is_refused():
    """Half of the windows without padding, half with much: one window is no picture of both."""
    lengths = np.array(([100] * 80 + [100, 1] * 40) * 5)
    epoch = planned("sorted", lengths, budget=100, window=2)
    request = epoch.request
    offsets = np.arange(0, len(lengths) + 1, 1)
    plan = type(epoch.plan)(
        samples=np.arange(len(lengths)),
        batch_offsets=np.concatenate([offsets[:1], offsets[2::2]]),
        window_offsets=np.arange(0, len(lengths) // 2 + 1, 2),
        layout="padded",
        ids=np.arange(len(lengths)),
        ledger=epoch.plan.ledger[:0],
    )
    with pytest.raises(TrialError, match="--windows"):
        representative_windows(EpochPlan(plan, lengths, request), 1)


def test_no_window_at_all_is_refused():
    with pytest.raises(TrialError, match="no window"):
        representative_windows(planned("random", np.zeros(0, np.int64)), 4)
