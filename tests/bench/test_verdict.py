from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.bench.metrics import METRICS
from dflash.bench.statistics import paired_ratio
from dflash.bench.verdict import (
    Judgement,
    Outcome,
    Question,
    Verdict,
    exit_code,
    judge,
    judge_exact,
    run_verdict,
)
from dflash.errors import ExitCode

TOK_S, SECONDS, BUSY = METRICS["tok_s"], METRICS["window_seconds"], METRICS["target_utilisation"]
PADDING, FLOPS, SHAPES = (
    METRICS[name] for name in ("padding_efficiency", "target_flops_per_token", "distinct_shapes")
)


def question(ratio: float, spread: float, metric: object = TOK_S, n: int = 10, **changes: object) -> Question:
    """Pairs whose Hodges-Lehmann estimate is ``ratio``: log ratios at even steps up to ``spread`` from it."""
    reference = np.full(n, 1000.0)
    candidate = reference * ratio * np.exp(np.linspace(-spread, spread, n))
    asked = Question("b.tok_s", "b", metric, reference, candidate, 0.05, 0.02, gated=True)  # type: ignore[arg-type]
    return replace(asked, **changes)  # type: ignore[arg-type]


def answer(asked: Question, level: float = 0.98, last_look: bool = True) -> Judgement:
    (found,) = judge([asked], level=level, last_look=last_look)
    return found


# Ratio of a rate, and spread of the pairs around it, with the floor at 2 % and the tolerance at 5 %. Of ten
# even steps the bound at 98 % is about 0.43 of the spread away.
CASES = [
    (0.939, 0.03, Verdict.REGRESSED),
    (0.500, 0.30, Verdict.REGRESSED),
    (0.979, 0.02, Verdict.REGRESSED),
    (0.970, 0.02, Verdict.REGRESSED),  # within the tolerance, and surely worse all the same
    (0.985, 0.02, Verdict.OK),  # surely worse, but less than the floor
    (1.000, 0.02, Verdict.OK),
    (0.970, 0.20, Verdict.INCONCLUSIVE),
    (1.050, 0.40, Verdict.INCONCLUSIVE),
    (0.985, 0.12, Verdict.INCONCLUSIVE),
    (1.050, 0.15, Verdict.OK),
    (1.015, 0.02, Verdict.OK),
    (1.025, 0.02, Verdict.IMPROVED),
    (1.400, 0.10, Verdict.IMPROVED),
]


@pytest.mark.parametrize(("ratio", "spread", "expected"), CASES)
def test_verdict_of_a_rate_and_of_a_cost(ratio: float, spread: float, expected: Verdict) -> None:
    assert answer(question(ratio, spread)).verdict is expected
    assert answer(question(2 - ratio if ratio > 0.6 else 1 / ratio, spread, SECONDS)).verdict is expected


@given(st.floats(0.5, 2), st.floats(0, 0.5), st.integers(6, 20), st.floats(0.001, 0.2))
def test_the_interval_is_the_paired_one_and_decides_by_its_sides(
    ratio: float, spread: float, n: int, floor: float
) -> None:
    asked = question(ratio, spread, n=n, floor=floor)
    found = answer(asked)
    assert found.ratio == paired_ratio(asked.reference, asked.candidate)
    bounds = found.ratio
    assert bounds is not None and bounds.low is not None and bounds.high is not None
    worse = bounds.high < 1 and bounds.estimate <= 1 - floor
    better = bounds.low > 1 and bounds.estimate >= 1 + floor
    assert (found.verdict is Verdict.REGRESSED) == worse
    assert (found.verdict is Verdict.IMPROVED) == better
    if not worse and not better:
        assert (found.verdict is Verdict.OK) == (bounds.low > 0.95)


@given(st.floats(0.3, 3), st.floats(0, 0.5))
def test_swapping_the_arms_turns_worse_into_better(ratio: float, spread: float) -> None:
    one = question(ratio, spread, floor=0.0)
    other = replace(one, reference=one.candidate, candidate=one.reference)
    assert (answer(one).verdict is Verdict.REGRESSED) == (answer(other).verdict is Verdict.IMPROVED)


def test_a_family_is_judged_by_holms_rule_and_information_never_counts() -> None:
    # Of six pairs that all agree p is 1/64: enough alone at 98 %, and not beside a second gate.
    alone = question(0.9, 0.05, n=6)
    fine = question(1.0, 0.01, n=6)
    assert [found.verdict for found in judge([alone], last_look=True)] == [Verdict.REGRESSED]
    two = judge([alone, fine], last_look=True)
    assert [found.verdict for found in two] == [Verdict.INCONCLUSIVE, Verdict.OK]
    assert two[0].reason.endswith("by itself it would count as worse, among so many gates it does not")
    for_information = judge([alone, replace(fine, gated=False)], last_look=True)
    assert [found.verdict for found in for_information] == [Verdict.REGRESSED, Verdict.OK]
    # Of seven pairs p is 1/128: both of two gates are at or below 2 % / 2.
    both = judge([question(0.9, 0.05, n=7), question(0.9, 0.05, n=7)], last_look=True)
    assert [found.verdict for found in both] == [Verdict.REGRESSED, Verdict.REGRESSED]


def test_a_family_raises_a_false_alarm_no_more_often_than_a_single_gate() -> None:
    """Four gates on noise alone, no floor: P(any alarm) <= 2 %, to three standard errors of 1500 runs."""
    rng = np.random.default_rng(4)
    ones, runs = np.ones(10), 1500
    alarms = 0
    for rows in np.exp(0.05 * rng.standard_normal((runs, 4, 10))):
        asked = [Question("m", "b", TOK_S, ones, row, 0.05, 0.0, gated=True) for row in rows]
        alarms += any(found.verdict is Verdict.REGRESSED for found in judge(asked, last_look=True))
    assert alarms / runs <= 0.02 + 3 * math.sqrt(0.02 * 0.98 / runs)


def test_reasons_say_size_side_bounds_and_pairs() -> None:
    worse = answer(question(0.939, 0.03))
    assert worse.ratio is not None and worse.ratio.low is not None and worse.ratio.high is not None
    bounds = [f"{100 * (1 - bound):.1f}" for bound in (worse.ratio.low, worse.ratio.high)]
    assert worse.reason == f"tok_s 6.1 % lower [\u2212{bounds[0]}, \u2212{bounds[1]}], 10 pairs: worse"
    assert answer(question(0.9, 0.03, SECONDS)).reason.endswith("10 pairs: better")
    assert answer(question(0.99, 0.03)).reason.endswith("10 pairs: 5 % worse is excluded")
    open_ = answer(question(0.99, 0.2, tolerance=0.03), last_look=False)
    assert open_.reason.endswith("3 % worse is not excluded")


def test_what_could_not_be_seen_is_said_at_the_last_look() -> None:
    found = answer(question(0.99, 0.2))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.minimum_detectable is not None and found.minimum_detectable > 0.05
    least = f"{100 * found.minimum_detectable:.1f} %"
    assert found.reason.endswith(f"5 % worse is not excluded; so many pairs show {least} here, and no less")


@pytest.mark.parametrize("metric", [TOK_S, SECONDS])
def test_the_minimum_detectable_loss_is_found_in_nine_of_ten_runs(metric: object) -> None:
    """What judge states on one set of runs, held against how often it finds just that in another."""
    rng = np.random.default_rng(12)
    ones, noise = np.ones(20), 0.04

    def ask(row: np.ndarray) -> Judgement:
        return answer(Question("m", "b", metric, ones, np.exp(row), 0.05, 0.02, gated=True), level=0.99)  # type: ignore[arg-type]

    stated = float(np.mean([ask(row).minimum_detectable for row in noise * rng.standard_normal((400, 20))]))
    shift = math.log1p(-stated) if metric is TOK_S else math.log1p(stated)
    found = [ask(shift + row).verdict for row in noise * rng.standard_normal((1500, 20))]
    assert found.count(Verdict.REGRESSED) / 1500 == pytest.approx(0.9, abs=0.04)


def test_without_an_interval_there_is_no_verdict() -> None:
    one = answer(question(0.5, 0.0, n=1))
    assert (one.verdict, one.reason) == (None, "tok_s 50.0 % lower, 1 pair: a 98 % interval needs 6")
    assert one.ratio is not None and one.ratio.estimate == pytest.approx(0.5)
    assert answer(question(0.5, 0.1, n=5)).verdict is None
    assert answer(question(0.5, 0.1, n=6), level=0.99).reason.endswith("a 99 % interval needs 7")


def test_no_pair_at_all_is_an_error() -> None:
    nothing = question(1.0, 0.0, n=0)
    found = answer(nothing)
    assert (found.verdict, found.ratio) == (Verdict.ERROR, None)
    assert found.reason == "tok_s: no pair in which both trials worked"
    # It takes no share of the family's level: the other gate is judged as if alone.
    assert judge([nothing, question(0.9, 0.05, n=6)], last_look=True)[1].verdict is Verdict.REGRESSED


def test_a_metric_without_a_better_side_has_no_verdict() -> None:
    judged = answer(question(0.5, 0.01, BUSY))
    assert judged.verdict is None
    assert judged.reason.endswith("neither side of target_utilisation is better")


def test_a_gain_that_nothing_explains_is_suspicious() -> None:
    assert not answer(question(1.45, 0.02)).suspicious
    found = answer(question(1.6, 0.02))
    assert (found.verdict, found.suspicious) == (Verdict.IMPROVED, True)
    assert "was all of the work done?" in found.reason
    assert answer(question(0.6, 0.02, SECONDS)).suspicious
    # Of two strategies one may have twice the padding efficiency, and twice the throughput by it.
    assert not answer(question(2.5, 0.02, expected=2.2)).suspicious
    # A loss is never suspicious, however large.
    assert not answer(question(0.1, 0.02)).suspicious


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 0.0, -1.0])
def test_a_value_that_has_no_ratio_is_refused(wrong: float) -> None:
    asked = question(1.0, 0.01)
    with pytest.raises(ValueError, match="expected finite values above zero"):
        answer(replace(asked, candidate=np.append(asked.candidate[1:], wrong)))
    with pytest.raises(ValueError, match="not pairs"):
        answer(replace(asked, candidate=asked.candidate[1:]))


@pytest.mark.parametrize(
    ("metric", "reference", "candidate", "verdict"),
    [
        (PADDING, 0.8, 0.8, Verdict.OK),
        (PADDING, 0.8, 0.7995, Verdict.OK),
        (PADDING, 0.8, 0.792, Verdict.REGRESSED),
        (PADDING, 0.8, 0.808, Verdict.IMPROVED),
        (PADDING, 0.8, 0.0, Verdict.REGRESSED),
        (FLOPS, 1e9, 1.01e9, Verdict.REGRESSED),
        (FLOPS, 1e9, 0.99e9, Verdict.IMPROVED),
        (SHAPES, 40.0, 39.0, Verdict.IMPROVED if SHAPES.direction == "lower" else Verdict.REGRESSED),
        (PADDING, 0.0, 0.0, Verdict.OK),
        (PADDING, 0.0, 0.5, Verdict.IMPROVED),
        (FLOPS, 0.0, 0.5, Verdict.REGRESSED),
        (PADDING, None, 0.5, Verdict.NO_BASELINE),
        (PADDING, None, None, Verdict.NO_BASELINE),
        (PADDING, 0.5, None, Verdict.ERROR),
        (PADDING, 0.5, math.nan, Verdict.ERROR),
        (PADDING, math.nan, 0.5, Verdict.ERROR),
        (PADDING, math.inf, math.inf, Verdict.ERROR),
    ],
)
def test_exact_metrics(
    metric: object, reference: float | None, candidate: float | None, verdict: Verdict
) -> None:
    found = judge_exact(metric, reference, candidate, 0.001)  # type: ignore[arg-type]
    assert found.verdict is verdict
    if reference and candidate is not None and verdict is not Verdict.ERROR:
        assert found.ratio is not None
        assert found.ratio.low == found.ratio.high == found.ratio.estimate == candidate / reference


def test_the_tolerance_itself_is_caught_and_zero_tolerates_nothing() -> None:
    for reference in (0.3, 0.7, 0.859, 123457.0):
        assert judge_exact(PADDING, reference, reference * 0.99, 0.01).verdict is Verdict.REGRESSED
        assert judge_exact(PADDING, reference, reference, 0.0).verdict is Verdict.OK
        assert judge_exact(PADDING, reference, np.nextafter(reference, 0), 0.0).verdict is Verdict.REGRESSED


def test_a_metric_without_a_better_side_must_not_move() -> None:
    tokens = METRICS["real_tokens"]
    assert tokens.direction == "none"
    for moved in (990.0, 1010.0):
        found = judge_exact(tokens, 1000.0, moved, 0.001)
        assert (found.verdict, found.reason[-7:]) == (Verdict.REGRESSED, "changed")


def test_an_exact_collapse_of_the_work_is_suspicious_but_not_between_strategies() -> None:
    collapse = judge_exact(FLOPS, 1e9, 3e7, 0.001)
    assert (collapse.verdict, collapse.suspicious) == (Verdict.IMPROVED, True)
    assert judge_exact(FLOPS, 1e9, 0.0, 0.001).suspicious
    assert judge_exact(PADDING, 0.4, 0.9, 0.001).suspicious
    assert not judge_exact(PADDING, 0.4, 0.9, 0.001, same_strategy=False).suspicious
    assert not judge_exact(FLOPS, 1e9, 0.7e9, 0.001).suspicious


def test_exact_reasons_show_both_values_and_the_change() -> None:
    found = judge_exact(PADDING, 0.866012, 0.857301, 0.001)
    assert found.reason == "padding_efficiency 0.866012 \u2192 0.857301 (\u22121.01 %): worse"
    assert judge_exact(PADDING, 0.5, 0.4999, 0.001).reason.endswith("within 0.1 %")


# What can happen in a run, each with the code it asks for, in the order of precedence 130, 2, 3, 1, 5, 4.
EVENTS: list[tuple[dict[str, object], int, Verdict]] = [
    ({"interrupted": True}, 130, Verdict.ERROR),
    ({"misused": True}, 2, Verdict.ERROR),
    ({"failed": 1}, 3, Verdict.ERROR),
    ({"gates": Verdict.REGRESSED}, 1, Verdict.REGRESSED),
    ({"measured": 0}, 5, Verdict.NO_BASELINE),
    ({"gates": Verdict.INCONCLUSIVE}, 4, Verdict.INCONCLUSIVE),
]


@pytest.mark.parametrize("happened", list(itertools.product([False, True], repeat=len(EVENTS))))
def test_every_combination_of_events_gives_the_code_of_the_gravest(happened: tuple[bool, ...]) -> None:
    events = [event for event, occurs in zip(EVENTS, happened, strict=True) if occurs]
    facts = {key: value for event, _, _ in events for key, value in event.items() if key != "gates"}
    gates = tuple(event["gates"] for event, _, _ in events if "gates" in event)
    outcome = Outcome(**({"measured": 4, "failed": 0} | facts), gates=(Verdict.OK, *gates))  # type: ignore[arg-type]
    assert exit_code(replace(outcome, strict=True)) == (events[0][1] if events else 0)
    assert exit_code(replace(outcome, on_inconclusive="fail")) == (events[0][1] if events else 0)
    assert run_verdict(outcome) == (events[0][2] if events else Verdict.OK)
    lenient = [code for _, code, _ in events if code != 4]
    assert exit_code(outcome) == (lenient[0] if lenient else 0)


@pytest.mark.parametrize(
    ("gates", "strict", "code", "verdict"),
    [
        ((), True, 0, Verdict.OK),
        ((Verdict.OK, Verdict.IMPROVED), True, 0, Verdict.IMPROVED),
        ((Verdict.ERROR, Verdict.REGRESSED), False, 3, Verdict.ERROR),
        ((Verdict.NO_BASELINE, Verdict.OK), False, 5, Verdict.NO_BASELINE),
        ((None, Verdict.IMPROVED), True, 4, Verdict.INCONCLUSIVE),
        ((None,), False, 0, Verdict.INCONCLUSIVE),
    ],
)
def test_gates(gates: tuple[Verdict | None, ...], strict: bool, code: int, verdict: Verdict) -> None:
    outcome = Outcome(measured=4, failed=0, gates=gates, strict=strict)
    assert (exit_code(outcome), run_verdict(outcome)) == (code, verdict)


def test_what_is_suspicious_fails_under_strict_alone() -> None:
    outcome = Outcome(measured=4, failed=0, gates=(Verdict.IMPROVED,), suspicious=True)
    assert [
        exit_code(outcome),
        exit_code(replace(outcome, on_inconclusive="fail")),
        exit_code(replace(outcome, strict=True)),
        exit_code(replace(outcome, strict=True, gates=(Verdict.IMPROVED, Verdict.REGRESSED))),
    ] == [0, 0, 4, 1]


@pytest.mark.parametrize("policy", ["pass", "save"])
def test_a_missing_baseline_may_pass_but_a_run_without_trials_never(policy: str) -> None:
    outcome = Outcome(measured=4, failed=0, gates=(Verdict.NO_BASELINE, Verdict.OK))
    forgiving = replace(outcome, on_missing_baseline=policy)  # type: ignore[arg-type]
    assert (exit_code(outcome), exit_code(forgiving)) == (5, 0)
    assert exit_code(replace(forgiving, gates=(Verdict.NO_BASELINE, Verdict.REGRESSED))) == 1
    assert exit_code(replace(forgiving, measured=0)) == 5


@given(st.integers(1, 10_000))
def test_no_number_of_failures_wraps_round_to_success(failed: int) -> None:
    assert exit_code(Outcome(measured=1, failed=failed)) is ExitCode.TRIAL_FAILED
