"""Gates on learning: verdicts by margins, written out case by case, and pairs by seed."""

from __future__ import annotations

import numpy as np
import pytest

from dflash.bench.gates import Rules, parse_gate, parse_gates
from dflash.bench.learning.gates import compare_learning
from dflash.bench.learning.results import Bounds, LearningArm, LearningReport
from dflash.bench.verdict import Verdict
from dflash.errors import ExitCode, UsageError

SEEDS = 6


def arm(strategy, losses=(), **given):
    by_seed = {"final_loss": list(losses), **given.pop("by_seed", {})}
    metrics = {"final_loss": float(np.mean(losses)) if len(losses) else None, **given.pop("metrics", {})}
    return LearningArm(
        strategy=strategy,
        verdict=given.pop("verdict", Verdict.OK),
        line=f"{strategy}: as it is",
        metrics=metrics,
        by_seed=by_seed,
        real_tokens=1000,
        frozen_windows=40,
        **given,
    )


def report(*arms):
    return LearningReport(
        reference=arms[0].strategy,
        seeds=list(range(SEEDS)),
        tokens=1000,
        pool_tokens=1000,
        level=0.98,
        speed_measured=True,
        arms=list(arms),
        exit_code=ExitCode.OK,
        notes=[],
        seconds=1.0,
        cores=2,
    )


def verdicts(report, *gates):
    found = compare_learning(report, Rules(gates=parse_gates(gates)))
    return {(one.strategy, one.metric): one for one in found}


@pytest.mark.parametrize(
    ("value", "low", "high", "verdict"),
    [
        (1.02, 0.95, 1.09, Verdict.OK),
        (1.20, 1.05, 1.24, Verdict.OK),  # worse, but surely by less than the margin
        (1.20, 1.05, 1.35, Verdict.INCONCLUSIVE),
        (1.30, 0.90, 1.80, Verdict.INCONCLUSIVE),
        (1.30, 1.01, 1.80, Verdict.REGRESSED),
        (0.60, 0.50, 0.70, Verdict.IMPROVED),
        (0.90, 0.80, 0.95, Verdict.OK),
        (1.30, None, None, None),
    ],
)
def test_a_design_effect_is_held_against_random_windows(value, low, high, verdict):
    bounds = {} if low is None else {"design_effect": (low, high)}
    some = report(arm("random"), arm("mine", metrics={"design_effect": value}, intervals=bounds))
    found = verdicts(some, "mine.design_effect:25%")["mine", "design_effect"]
    assert (found.verdict, found.reference, found.estimate) == (verdict, "random windows", value)
    assert (found.low, found.high) == (low, high)
    assert "40 windows" in found.reason


def test_a_gate_on_design_effects_binds_the_reference_too():
    effect = {"metrics": {"design_effect": 2.0}, "intervals": {"design_effect": (1.5, 2.5)}}
    found = verdicts(report(arm("sorted", **effect), arm("mine", **effect)), "design_effect")
    assert [one.verdict for one in found.values()] == [Verdict.REGRESSED] * 2


@pytest.mark.parametrize(
    ("factor", "spread", "verdict"),
    [
        (1.000, 0.0005, Verdict.OK),
        (1.030, 0.0005, Verdict.REGRESSED),
        (0.970, 0.0005, Verdict.IMPROVED),
        (1.003, 0.0005, Verdict.OK),  # worse, but by less than the margin
        (1.000, 0.0300, Verdict.INCONCLUSIVE),
    ],
)
def test_losses_are_paired_by_seed(factor, spread, verdict):
    # Seeds differ by far more than arms do, which pairs take out.
    before = 5.0 + np.arange(SEEDS)
    after = before * factor * np.exp(spread * np.linspace(-1, 1, SEEDS))
    ratio = {"final_loss": Bounds(factor)}
    some = report(arm("random", before), arm("mine", after, against_reference=ratio))
    found = verdicts(some, "final_loss:1%")
    assert list(found) == [("mine", "final_loss")]
    one = found["mine", "final_loss"]
    assert (one.verdict, one.pairs) == (verdict, SEEDS)
    assert one.estimate == pytest.approx(factor, abs=0.01)


def test_losses_that_must_not_be_compared_are_inconclusive():
    some = report(arm("random", [5.0] * SEEDS), arm("mine", [9.0] * SEEDS))
    one = verdicts(some, "final_loss")["mine", "final_loss"]
    assert one.verdict == Verdict.INCONCLUSIVE and "mine: as it is" in one.reason


def test_a_run_that_never_gets_there_counts_with_its_last_token():
    def by_seed(*times):
        return {"by_seed": {"time_to_loss": list(times)}, "against_reference": {"time_to_loss": Bounds(1.2)}}

    fast = arm("random", **by_seed(500, 510, 520, 530, 540, 550))
    slow = arm("mine", **by_seed(None, None, None, 990, 980, 970))
    one = verdicts(report(fast, slow), "time_to_loss")["mine", "time_to_loss"]
    assert one.verdict == Verdict.REGRESSED
    assert 970 / 550 < one.estimate < 1000 / 500


@pytest.mark.parametrize(
    ("spikes", "verdict"),
    [([0] * SEEDS, Verdict.OK), ([1] * SEEDS, Verdict.REGRESSED), ([0] * 5 + [9], Verdict.OK)],
)
def test_spikes_are_counted_by_seeds_that_have_one(spikes, verdict):
    def with_spikes(name, counts):
        return arm(name, by_seed={"loss_spikes": [float(n) for n in counts]})

    some = report(with_spikes("random", [0] * SEEDS), with_spikes("mine", spikes))
    assert verdicts(some, "loss_spikes")["mine", "loss_spikes"].verdict == verdict


@pytest.mark.parametrize(
    ("bounds", "verdict"),
    [
        (Bounds(0.2, 0.1, 0.3), Verdict.REGRESSED),  # of a loss of 5 that is 4 %
        (Bounds(0.0, -0.01, 0.01), Verdict.OK),
        (Bounds(0.0, -0.2, 0.2), Verdict.INCONCLUSIVE),
    ],
)
def test_forgetting_is_a_share_of_the_loss(bounds, verdict):
    losses = [5.0] * SEEDS
    some = report(arm("random", losses), arm("mine", losses, against_reference={"forgetting": bounds}))
    assert verdicts(some, "forgetting:1%")["mine", "forgetting"].verdict == verdict


def test_what_few_seeds_cannot_say_has_no_verdict():
    some = report(arm("random"), arm("mine"))
    for name in ("time_to_loss", "loss_spikes", "forgetting", "design_effect"):
        one = verdicts(some, f"mine.{name}")["mine", name]
        assert one.verdict is None and "use more --seeds" in one.reason


@pytest.mark.parametrize("who", ["random", "mine"])
def test_an_arm_that_failed_fails_its_gates(who):
    arms = [
        arm(name, [5.0] * SEEDS, error="boom" if name == who else None, verdict=None)
        for name in ("random", "mine")
    ]
    found = verdicts(report(*arms), "mine.final_loss", "mine.design_effect")
    assert {one.verdict for one in found.values()} == {Verdict.ERROR}
    assert all("boom" in one.reason for one in found.values())


def test_a_gate_on_learning_may_leave_its_percentage_out():
    gate = parse_gate("bucketed:buckets=4.design_effect")
    assert (gate.strategy, gate.metric.name, gate.tolerance) == ("bucketed:buckets=4", "design_effect", 0.25)
    gate = parse_gate("final_loss:0.5%")
    assert (gate.strategy, gate.tolerance, gate.metric.gate_rule) == (None, 0.005, "learning")
    assert parse_gate("loss_spikes:0%").tolerance == 0
    with pytest.raises(UsageError, match=r"counts events.*write loss_spikes:0%"):
        parse_gate("loss_spikes:5%")
    with pytest.raises(UsageError, match=r"write \[STRATEGY.\]METRIC:PERCENT"):
        parse_gate("tok_s")
    with pytest.raises(UsageError, match="trials of one seed cannot decide target_utilisation"):
        parse_gate("target_utilisation:5%")
