"""Stored runs against predictions: right, drifted, and impossible to compare."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from dflash.bench import machine, results
from dflash.bench.predict_check import check_run
from dflash.bench.predict_report import show_check
from dflash.bench.window_set import representative_windows
from dflash.data.store import TokenStore
from dflash.errors import ExitCode
from dflash.plugin_manager import PluginManager
from dflash.simulation.foretell import foretell
from dflash.simulation.hardware import fingerprint
from dflash.simulation.profile import Figure, Fitted, Measured, Profile
from dflash.simulation.sizes import load_sizes
from dflash.training.schedule import plan_epoch


@pytest.fixture
def config(small_config):
    return small_config


@pytest.fixture
def epoch(config):
    arm = PluginManager().arms("random")[0]
    return plan_epoch(arm.strategy, arm.name, TokenStore.open(config.data.store), config, epoch=0)


@pytest.fixture
def profile(config):
    def fitted(*coefficients):
        return Fitted(list(coefficients), 0.05, 0.1, "made up")

    one = Figure(1.0, "made up")
    measured = Measured(
        sizes=fingerprint(load_sizes(config.data.target, config.drafter)),
        cores=2,
        supervised_share=0.7,
        label_share=0.8,
        target_padded=fitted(0.01, 1e-5, 1e-8),
        target_packed=fitted(0.01, 1e-5, 1e-8),
        drafter=fitted(0.01, 1e-4, 1e-6, 1e-6, 1e-7),
        load=fitted(1e-4, 1e-7),
        optimizer_seconds=Figure(0.005, "made up"),
        copy_bandwidth=Figure(1e9, "made up"),
        target_slowdown=one,
        drafter_slowdown=one,
    )
    return Profile(name="small", summary="made up", measured=measured)


def test_a_run_is_held_against_its_prediction(config, epoch, profile):
    expected = foretell(config, epoch, profile, _order(config, epoch), 1, 3)
    digest = epoch.plan.digest()

    def arm(name, rate, **more):
        origin = results.Plugin(distribution="dflash", version="1", file_hash="")
        return results.Arm(strategy=name, options={}, plugin=origin, metrics={"tok_s": rate}, **more)

    run = results.Run(
        run_id="R",
        verdict="OK",
        exit_code=ExitCode.OK,
        reference="random",
        arms=[
            arm("random", expected.tok_s, plan={"digest": digest}),
            arm("random", 3 * expected.high),
            arm("random", None),
            arm("random", 1.0, plan={"digest": "another"}),
            arm("nobody", 1.0),
        ],
        comparisons=[],
        settings=results.Settings(
            token_budget=400,
            accumulation=2,
            drafters=1,
            warmup_windows=1,
            windows=3,
            rounds=1,
            seed=0,
            trainer=msgspec.to_builtins(config),
        ),
        data=results.Data(name="", fingerprint="", samples=1, tokens=1),
        machine=machine.describe(),
    )
    checks = list(check_run(run, profile, PluginManager()))
    right, fast, missing, replanned, unknown = checks
    assert (right.topology, right.drifted) == ("1:1", False)
    assert right.foretold == expected
    assert (fast.drifted, fast.remark) == (True, "beyond the stated error")
    assert (missing.drifted, missing.remark) == (True, "not measured")
    assert "plans differently now" in replanned.remark
    assert "unknown strategy 'nobody'" in unknown.remark
    file = io.StringIO()
    show_check(checks, "small", Console(width=80, file=file))
    text = file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("drift ") == 4
    assert "1.000" in text


def _order(config, epoch):
    cycle = representative_windows(epoch, 3)
    cooldown = -(-config.pipeline.depth // config.batching.accumulation)
    return [cycle[(place - 1) % len(cycle)] for place in range(1 + 3 + cooldown)]
