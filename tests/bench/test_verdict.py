from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.bench.metrics import METRICS
from dflash.bench.verdict import Outcome, Verdict, exit_code, judge, run_verdict
from dflash.errors import ExitCode

TOK_S, SECONDS, BUSY = METRICS["tok_s"], METRICS["window_seconds"], METRICS["target_utilisation"]

# estimate, low, high of a rate, with the floor at 2 % and the tolerance at 5 %.
CASES = [
    ((0.939, 0.926, 0.951), Verdict.REGRESSED),
    ((0.500, 0.490, 0.510), Verdict.REGRESSED),
    ((0.980, 0.970, 0.999), Verdict.REGRESSED),
    ((0.970, 0.960, 0.980), Verdict.REGRESSED),  # within the tolerance, and surely worse all the same
    ((0.985, 0.975, 0.995), Verdict.OK),  # surely worse, but less than the floor
    ((1.000, 0.990, 1.010), Verdict.OK),
    ((0.970, 0.951, 1.001), Verdict.OK),
    ((0.970, 0.949, 1.001), Verdict.INCONCLUSIVE),
    ((0.970, 0.950, 1.001), Verdict.INCONCLUSIVE),
    ((1.050, 0.940, 1.200), Verdict.INCONCLUSIVE),
    ((0.985, 0.940, 0.999), Verdict.INCONCLUSIVE),
    ((1.050, 0.990, 1.100), Verdict.OK),
    ((1.015, 1.005, 1.025), Verdict.OK),
    ((1.021, 1.005, 1.040), Verdict.IMPROVED),
    ((2.000, 1.900, 2.100), Verdict.IMPROVED),
]


@pytest.mark.parametrize(("ratio", "expected"), CASES)
def test_verdict_of_a_rate(ratio: tuple[float, float, float], expected: Verdict) -> None:
    assert judge(TOK_S, *ratio, pairs=10).verdict is expected


@pytest.mark.parametrize(("ratio", "expected"), CASES)
def test_a_cost_is_judged_from_the_other_side(ratio: tuple[float, float, float], expected: Verdict) -> None:
    estimate, low, high = (2 - value for value in ratio)
    assert judge(SECONDS, estimate, high, low, pairs=10).verdict is expected


@settings(deadline=None)
@given(st.floats(0.5, 2), st.floats(0.5, 2), st.floats(0.5, 2), st.floats(0.001, 0.2))
def test_never_regressed_while_no_change_is_possible(a: float, b: float, c: float, floor: float) -> None:
    low, estimate, high = sorted((a, b, c))
    for metric in (TOK_S, SECONDS):
        verdict = judge(metric, estimate, low, high, 10, floor=floor).verdict
        if low <= 1 <= high:
            assert verdict in (Verdict.OK, Verdict.INCONCLUSIVE)
        worse = estimate < 1 if metric is TOK_S else estimate > 1
        assert verdict is not (Verdict.IMPROVED if worse else Verdict.REGRESSED)


@settings(deadline=None)
@given(st.floats(0.5, 2), st.floats(0.5, 2), st.floats(0.5, 2))
def test_worse_for_a_rate_is_better_for_a_cost(a: float, b: float, c: float) -> None:
    low, estimate, high = sorted((a, b, c))
    as_rate, as_cost = (judge(metric, estimate, low, high, 10).verdict for metric in (TOK_S, SECONDS))
    assert (as_rate is Verdict.REGRESSED) == (as_cost is Verdict.IMPROVED)
    assert (as_rate is Verdict.IMPROVED) == (as_cost is Verdict.REGRESSED)


@settings(deadline=None)
@given(st.floats(0.9, 1.1), st.floats(0, 0.1), st.floats(0, 0.1))
def test_what_is_sure_stays_sure_when_the_interval_narrows(
    estimate: float, below: float, above: float
) -> None:
    wide = judge(TOK_S, estimate, estimate - below, estimate + above, 10).verdict
    narrow = judge(TOK_S, estimate, estimate - below / 2, estimate + above / 2, 10).verdict
    if wide in (Verdict.REGRESSED, Verdict.IMPROVED):
        assert narrow is wide
    if wide is Verdict.OK:
        assert narrow is not Verdict.INCONCLUSIVE


def test_reasons_say_size_side_bounds_and_pairs() -> None:
    assert judge(TOK_S, 0.939, 0.926, 0.951, 10).reason == (
        "tok_s 6.1 % lower [\u22127.4, \u22124.9], 10 pairs: worse"
    )
    assert judge(SECONDS, 0.90, 0.88, 0.92, 8).reason == (
        "window_seconds 10.0 % lower [\u221212.0, \u22128.0], 8 pairs: better"
    )
    assert judge(TOK_S, 0.99, 0.97, 1.01, 10).reason.endswith("10 pairs: 5 % worse is excluded")
    assert judge(TOK_S, 0.99, 0.9, 1.1, 10, tolerance=0.03).reason.endswith("3 % worse is not excluded")


def test_without_an_interval_there_is_no_verdict() -> None:
    one = judge(TOK_S, 0.5, None, None, pairs=1)
    assert (one.verdict, one.reason) == (None, "tok_s 50.0 % lower, 1 pair: a 98 % interval needs 6")
    assert judge(TOK_S, 0.5, None, None, pairs=5).verdict is None
    assert judge(TOK_S, 0.5, None, None, pairs=6, level=0.99).reason.endswith("a 99 % interval needs 7")


def test_a_metric_without_a_better_side_has_no_verdict() -> None:
    judged = judge(BUSY, 0.5, 0.4, 0.6, pairs=10)
    assert judged.verdict is None
    assert judged.reason.endswith("neither side of target_utilisation is better")


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
    assert exit_code(outcome, strict=True) == (events[0][1] if events else 0)
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
    outcome = Outcome(measured=4, failed=0, gates=gates)
    assert (exit_code(outcome, strict), run_verdict(outcome)) == (code, verdict)


@settings(deadline=None)
@given(st.integers(1, 10_000))
def test_no_number_of_failures_wraps_round_to_success(failed: int) -> None:
    assert exit_code(Outcome(measured=1, failed=failed)) is ExitCode.TRIAL_FAILED
