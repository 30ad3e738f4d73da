"""Calibration through the trainer's real stages, and what follows from it."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from dflash.bench.window_set import representative_windows
from dflash.config import load_config
from dflash.data.store import TokenStore
from dflash.errors import UsageError
from dflash.plugin_manager import PluginManager
from dflash.simulation import hardware
from dflash.simulation.calibrate import MIXED, QUANTILES, SHARES, calibrate
from dflash.simulation.foretell import Foretold, foretell
from dflash.simulation.profile import dump_profile, parse_profile
from dflash.simulation.shapes import plan_shapes
from dflash.simulation.sizes import load_sizes
from dflash.simulation.workbench import Workbench, shapes_of
from dflash.training.schedule import plan_epoch


@pytest.fixture(scope="module")
def config(small_target, small_store):
    settings = (
        f"data.store={small_store}",
        f"data.target={small_target}",
        "data.allow_untrained_target=true",
        "batching.token_budget=400",
        "batching.strategy=random",
        "drafter.block_size=8",
        "drafter.max_anchors=4",
        "drafter.anchor_stride=4",
    )
    return load_config(None, settings)


@pytest.fixture(scope="module")
def found(config):
    lines = []
    calibration = calibrate(config, "small", 2, lines.append, loop_seconds=0.02)
    assert "a target and a drafter at once" in lines
    return calibration


@pytest.fixture
def epoch(config):
    arm = PluginManager().arms("random")[0]
    return plan_epoch(arm.strategy, arm.name, TokenStore.open(config.data.store), config, epoch=0)


def test_every_stage_is_measured(found):
    assert found.micro_batches == 2 * (len(QUANTILES) * len(SHARES) + MIXED) >= 24
    assert 0 <= found.disturbed < 1
    measured = found.profile.measured
    for stage in (measured.target_padded, measured.target_packed, measured.drafter, measured.load):
        assert max(stage.coefficients) > 0
        assert stage.leave_one_out <= stage.largest_error
    assert measured.cores == 2
    assert measured.target_slowdown.value >= 1
    assert measured.drafter_slowdown.value >= 1
    assert parse_profile(dump_profile(found.profile), "text") == found.profile


def test_shares_are_those_of_the_store(config, found):
    """The small store supervises all but the first third of every sample, without a gap."""
    store = TokenStore.open(config.data.store)
    rows = store.rows(held_out=False)
    lengths = store.lengths[rows]
    supervised = sum(int(length) - int(length) // 3 for length in lengths)
    assert found.profile.measured.supervised_share == pytest.approx(supervised / lengths.sum(), rel=1e-6)
    # Anchors lie in the last two thirds, so more blocks are cut short than the rule expects.
    assert 0.5 < found.profile.measured.label_share <= 1


def test_the_rule_gives_the_anchors_that_the_trainer_draws(config, found, epoch):
    bench = Workbench.open(config)
    rule = hardware.anchor_rule(found.profile, config.drafter)
    shapes = plan_shapes(epoch.plan, epoch.lengths, epoch.request, rule)
    window = [batch for number in range(epoch.plan.windows) for batch in epoch.window(number).micro_batches]
    real = shapes_of([bench.load(rows, lengths, "padded") for rows, lengths in window])
    assert real.real_tokens.tolist() == shapes.real_tokens.tolist()
    assert real.target_tokens.tolist() == shapes.target_tokens.tolist()
    assert real.target_squares.tolist() == shapes.target_squares.tolist()
    assert shapes.anchors.sum() == pytest.approx(real.anchors.sum(), rel=0.03)
    assert shapes.labels.sum() == pytest.approx(real.labels.sum(), rel=0.05)
    assert shapes.anchor_context.sum() == pytest.approx(real.anchor_context.sum(), rel=0.03)


def test_a_commit_leaves_nothing_behind(config):
    bench = Workbench.open(config)
    rows = bench.store.rows(held_out=False)[:3]
    output = bench.features(bench.load(rows, bench.store.lengths[rows], "packed"))
    before = [weight.detach().clone() for weight in bench.step.drafter.parameters()]
    bench.train(output)
    assert any(weight.grad is not None for weight in bench.step.drafter.parameters())
    bench.commit()
    assert all(weight.grad is None for weight in bench.step.drafter.parameters())
    after = list(bench.step.drafter.parameters())
    assert any(not np.array_equal(a.numpy(), b.detach().numpy()) for a, b in zip(before, after, strict=True))


def test_a_profile_holds_for_its_models_only(found, config):
    sizes = load_sizes(config.data.target, config.drafter)
    assert hardware.cost_model(found.profile, sizes).cores == 2
    other = load_sizes(config.data.target, msgspec.structs.replace(config.drafter, layers=3))
    with pytest.raises(UsageError, match="profile small was measured with other models"):
        hardware.cost_model(found.profile, other)
    with pytest.raises(UsageError, match="its attention is what it is"):
        hardware.cost_model(found.profile, sizes, "eager")


def test_foretelling_a_trial_and_an_epoch(config, found, epoch):
    whole = foretell(config, epoch, found.profile)
    windows = representative_windows(epoch, 4)
    trial = foretell(
        config, epoch, found.profile, [windows[place % len(windows)] for place in range(6)], 1, 4
    )
    for one in (whole, trial):
        assert 0 < one.low < one.tok_s < one.high
    # The windows of a trial stand for the whole plan.
    assert trial.tok_s == pytest.approx(whole.tok_s, rel=0.25)


def test_drift_is_what_lies_beyond_the_stated_error():
    one = Foretold(100.0, 90.0, 110.0)
    assert one.drift(90.0) is None
    assert one.drift(110.0) is None
    assert one.drift(80.0) == pytest.approx(-0.2)
    assert one.drift(120.0) == pytest.approx(0.2)


def test_more_workers_than_cores_are_no_faster(config, found, epoch):
    """On one core the order of work changes nothing: targets and drafters add up."""
    measured = msgspec.structs.replace(found.profile.measured, cores=1)
    profile = msgspec.structs.replace(found.profile, measured=measured)
    order = list(range(epoch.plan.windows))
    rates = []
    for targets in (1, 2, 3):
        pipeline = msgspec.structs.replace(config.pipeline, targets=targets)
        changed = msgspec.structs.replace(config, pipeline=pipeline)
        rates.append(foretell(changed, epoch, profile, order, 0, len(order)).tok_s)
    assert rates == pytest.approx([rates[0]] * 3)
