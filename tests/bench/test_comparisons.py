from __future__ import annotations

from typing import Any

import msgspec
import pytest
from trial_records import duel, failed, measured

from dflash.bench.comparisons import compare, compare_exact, unanswered
from dflash.bench.gates import Rules, parse_gates
from dflash.bench.pairs import Duel
from dflash.bench.results import Arm, Comparison, Plugin, Trial
from dflash.errors import TrialError

PAIR = [Duel("random", "bucketed")]


def rules(*gates: str, **others: Any) -> Rules:
    return Rules(gates=parse_gates(gates), **others)


def gated(comparisons: list[Comparison]) -> dict[tuple[str, str], tuple[str | None, str | None]]:
    return {(c.strategy, c.metric): (c.gate, c.verdict) for c in comparisons if c.gate is not None}


def speed(trials: list[Trial], reference: str, metric: str = "tok_s") -> dict[str, Any]:
    duels = [Duel(reference, arm) for arm in dict.fromkeys(t.arm for t in trials) if arm != reference]
    found = {c.strategy: msgspec.to_builtins(c) for c in compare(trials, duels) if c.metric == metric}
    return found if len(found) > 1 else next(iter(found.values()))


def test_adjacent_trials_cancel_the_drift_of_the_machine() -> None:
    ratios = [1.21, 1.19, 1.20, 1.22, 1.18, 1.20]
    found = speed(duel(ratios), "random")
    assert found["estimate"] == pytest.approx(1.2, abs=0.005)
    assert (found["low"], found["high"]) == pytest.approx((1.18, 1.22))
    assert (found["pairs"], found["verdict"], found["reference"]) == (6, "IMPROVED", "random")
    seconds = speed(duel(ratios), "random", "window_seconds")
    assert seconds["estimate"] == pytest.approx(1 / found["estimate"])
    assert seconds["verdict"] == "IMPROVED"


def test_the_other_reference_gives_the_reciprocal_and_names_and_order_give_nothing() -> None:
    trials = duel([1.21, 1.19, 1.20, 1.22, 1.18, 1.20])
    one, other = speed(trials, "random"), speed(trials[::-1], "bucketed")
    assert one["estimate"] == pytest.approx(1 / other["estimate"])
    assert (one["low"], one["high"]) == pytest.approx((1 / other["high"], 1 / other["low"]))
    assert other["verdict"] == "REGRESSED"
    renamed = speed(duel([1.21, 1.19, 1.20, 1.22, 1.18, 1.20], arms=("zebra", "aardvark")), "zebra")
    assert {k: renamed[k] for k in ("estimate", "low", "high")} == {
        k: one[k] for k in ("estimate", "low", "high")
    }


def test_every_candidate_is_held_against_its_own_trials_of_the_reference() -> None:
    """The second candidate ran while the machine was ten times slower."""
    first = duel([1.1] * 6, arms=("random", "bucketed"))
    second = [
        msgspec.structs.replace(
            trial, pair=trial.pair + 6, metrics=trial.metrics | {"tok_s": (trial.metrics["tok_s"] or 0) / 10}
        )
        for trial in duel([0.9] * 6, arms=("random", "sorted"))
    ]
    found = speed(first + second, "random")
    assert found["bucketed"]["estimate"] == pytest.approx(1.1)
    assert found["sorted"]["estimate"] == pytest.approx(0.9)
    assert found["bucketed"]["pairs"] == found["sorted"]["pairs"] == 6


def test_a_broken_pair_does_not_count_and_no_pair_at_all_is_an_error() -> None:
    trials = [
        *duel([1.1, 1.1]),
        measured(2, "random", 1000),
        failed(2, "bucketed"),
        measured(3, "random", 9.0),
    ]
    assert speed(trials, "random")["pairs"] == 2
    nothing = speed([measured(0, "random", 1000), failed(0, "bucketed")], "random")
    assert (nothing["verdict"], nothing["estimate"], nothing["pairs"]) == ("ERROR", None, 0)


def test_what_was_not_measured_or_is_zero_has_no_ratio() -> None:
    trials = duel([1.1, 1.1])
    for name in ("loss_tok_s", "cpu_seconds"):
        found = speed(trials, "random", name)
        assert (found["estimate"], found["verdict"]) == (None, None)
        assert name in found["reason"]
    partly = [measured(0, arm, 10, metrics={"cpu_seconds": 1.0}) for arm in ("random", "bucketed")]
    assert speed([*partly, *duel([1.1, 1.1])[2:]], "random", "cpu_seconds")["estimate"] is None
    zero = {"metrics": {"loss_tok_s": 0.0}}
    zeros = [measured(0, "random", 1000, **zero), measured(0, "bucketed", 1000, **zero)]
    assert "zero" in speed(zeros, "random", "loss_tok_s")["reason"]


def test_only_clocks_are_compared_and_two_trials_of_one_arm_are_no_pair() -> None:
    metrics = [c.metric for c in compare(duel([1.0]), [Duel("random", "bucketed")])]
    assert metrics == ["tok_s", "padded_tok_s", "loss_tok_s", "window_seconds", "cpu_seconds"]
    with pytest.raises(TrialError, match="random, pair 0, seed 0: the pair has a trial of this arm already"):
        compare([measured(0, "random", 1), measured(0, "random", 1)], [Duel(None, "random")])
    assert compare([measured(0, "random", 1)], [Duel(None, "random")]) == []


# --- gates


def test_a_gate_marks_its_comparison_and_the_particular_one_wins() -> None:
    trials = duel([0.9] * 10)
    found = compare(trials, PAIR, rules("tok_s:5%", "bucketed.tok_s:20%", "random.padded_tok_s:1%"))
    assert gated(found) == {("bucketed", "tok_s"): ("bucketed.tok_s:20%", "REGRESSED")}
    (speed_,) = [c for c in found if c.gate]
    assert (speed_.tolerance, speed_.floor, speed_.pairs) == (0.2, 0.02, 10)
    assert speed_.minimum_detectable is not None and speed_.minimum_detectable > 0


def test_lower_is_better_for_times_and_higher_for_rates() -> None:
    """Half the tokens per second is twice the time: both are worse, and the inverse both better."""
    for ratio, verdict in ((0.5, "REGRESSED"), (2.0, "IMPROVED")):
        found = gated(compare(duel([ratio] * 10), PAIR, rules("tok_s:5%", "window_seconds:5%")))
        assert [verdict_ for _, verdict_ in found.values()] == [verdict] * 2


def test_pairs_that_are_left_out_count_in_nothing() -> None:
    trials = duel([1.0] * 6 + [0.1] * 2)
    found = compare(trials, PAIR, rules("tok_s:5%"), invalid={6, 7})
    (one,) = [c for c in found if c.gate]
    assert (one.pairs, one.estimate) == (6, pytest.approx(1.0))


def test_a_gated_clock_without_a_ratio_is_an_error_and_never_a_pass() -> None:
    zero = {"metrics": {"loss_tok_s": 0.0}}
    trials = [measured(0, "random", 1000, **zero), measured(0, "bucketed", 1000, **zero)]
    assert gated(compare(trials, PAIR, rules("loss_tok_s:5%"))) == {
        ("bucketed", "loss_tok_s"): ("loss_tok_s:5%", "ERROR")
    }


def test_a_gain_that_less_padding_explains_is_not_suspicious() -> None:
    def trials(efficiency: float) -> list[Any]:
        return [
            msgspec.structs.replace(t, metrics=t.metrics | {"padding_efficiency": efficiency})
            if t.arm == "bucketed"
            else t
            for t in duel([2.0] * 10)
        ]

    for efficiency, suspicious in ((0.9, True), (1.8, False)):
        (one,) = [c for c in compare(trials(efficiency), PAIR, rules("tok_s:5%")) if c.gate]
        assert (one.verdict, one.suspicious) == ("IMPROVED", suspicious)


def arm(name: str, **metrics: float | None) -> Arm:
    plugin = Plugin(distribution="dflash", version="1", file_hash="")
    return Arm(strategy=name, options={}, plugin=plugin, metrics=metrics)


@pytest.mark.parametrize(
    ("after", "verdict"),
    [(0.9, "OK"), (0.8992, "OK"), (0.89, "REGRESSED"), (0.95, "IMPROVED"), (None, "ERROR")],
)
def test_exact_figures_of_two_arms_need_no_pairs(after: float | None, verdict: str) -> None:
    arms = [arm("random", padding_efficiency=0.9), arm("bucketed", padding_efficiency=after)]
    found = compare_exact(arms, PAIR, rules("padding_efficiency:0.1%"))
    assert gated(found) == {("bucketed", "padding_efficiency"): ("padding_efficiency:0.1%", verdict)}
    assert compare_exact(arms, PAIR, rules("tok_s:1%")) == []


def test_a_gate_that_met_nothing_is_said_and_never_a_pass() -> None:
    wanted = rules("tok_s:5%", "sorted.padding_efficiency:1%")
    found = compare(duel([1.0] * 10), PAIR, wanted)
    missing = unanswered(["bucketed"], found, wanted)
    assert gated(missing) == {
        ("sorted", "padding_efficiency"): ("sorted.padding_efficiency:1%", "NO_BASELINE")
    }
    alone = unanswered(["random"], [], rules("tok_s:5%"))
    assert gated(alone) == {("random", "tok_s"): ("tok_s:5%", "NO_BASELINE")}
    assert "--against REV" in alone[0].reason
    (new,) = unanswered(["new"], [], rules("tok_s:5%"), {"new": "main does not have it"})
    assert "main does not have it" in new.reason
