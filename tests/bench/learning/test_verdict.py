from __future__ import annotations

import pytest

from dflash.bench.learning.design_effect import Estimate
from dflash.bench.learning.pareto import Place, dominated
from dflash.bench.learning.stability import SpikeComparison
from dflash.bench.learning.verdict import Evidence, judge
from dflash.bench.statistics import Interval
from dflash.bench.verdict import Verdict

LEVEL = 0.98


def effect(value, low=None, high=None):
    return Estimate(value, low, high, 64, 6, "seeds")


LIKE_RANDOM, NOISY, VAGUE = effect(1.02, 0.97, 1.08), effect(2.5, 1.8, 3.4), effect(1.1, 0.7, 1.7)
EQUAL, WORSE, UNKNOWN = (
    Interval(1.001, 0.998, 1.004, 6),
    Interval(1.03, 1.02, 1.04, 6),
    Interval(1.004, None, None, 3),
)


def line(**given):
    facts = {
        "strategy": "step_window",
        "reference": "random",
        "speed": 2.1,
        "speed_measured": True,
        "effect": LIKE_RANDOM,
        "loss": EQUAL,
    }
    return judge(Evidence(**facts | given), LEVEL)


def test_a_good_strategy_in_one_line():
    assert line() == (
        Verdict.OK,
        "step_window: 2.1x random's real tok/s, gradients like random's (design effect 1.02 [0.97, 1.08], "
        "64 windows), loss equal within 0.4 %",
    )


@pytest.mark.parametrize(
    ("given", "verdict", "words"),
    [
        ({"effect": NOISY}, Verdict.REGRESSED, "a window is worth 40 % of a random one"),
        ({"effect": VAGUE}, Verdict.INCONCLUSIVE, "gradients not told from random's"),
        ({"effect": effect(0.7, 0.6, 0.8)}, Verdict.OK, "no noisier than random's"),
        ({"effect": None}, Verdict.INCONCLUSIVE, "gradients not measured"),
        ({"loss": WORSE}, Verdict.REGRESSED, "loss 3.0 % higher [+2.0, +4.0] %"),
        ({"loss": Interval(0.97, 0.96, 0.98, 6)}, Verdict.OK, "loss 3.0 % lower"),
        ({"loss": Interval(1.004, 0.99, 1.02, 6)}, Verdict.INCONCLUSIVE, "1 % worse is not excluded"),
        ({"loss": UNKNOWN}, Verdict.INCONCLUSIVE, "(3 seeds, 6 give an interval)"),
        ({"loss": None}, Verdict.INCONCLUSIVE, "loss not measured"),
        ({"speed_measured": False}, Verdict.OK, "2.1x random's real tok/s, as its plan predicts"),
        ({"spikes": SpikeComparison(0, 7, 0.001, True)}, Verdict.REGRESSED, "7 spikes against 0"),
        ({"spikes": SpikeComparison(0, 1, 0.5, False)}, Verdict.OK, "loss equal"),
        ({"time": Interval(1.3, 1.1, 1.5, 6)}, Verdict.REGRESSED, "30 % more tokens to random's loss"),
        ({"time": Interval(1.05, 1.01, 1.1, 6)}, Verdict.OK, "loss equal"),
        ({"censored": 2}, Verdict.REGRESSED, "2 more seeds than random never reached its loss"),
        ({"is_reference": True, "loss": None}, Verdict.OK, "the reference, gradients like random's"),
    ],
)
def test_what_decides(given, verdict, words):
    found, text = line(**given)
    assert found == verdict
    assert words in text


def test_losses_are_not_ranked_where_token_counts_differ():
    verdict, text = line(loss=None, incomparable="it saw 900 real tokens, random 1000")
    assert verdict == Verdict.INCONCLUSIVE
    assert "losses not ranked: it saw 900 real tokens, random 1000" in text
    assert "higher" not in text


def test_a_strategy_is_dominated_by_a_faster_one_with_no_noisier_gradients():
    places = {
        "random": Place(1.0, effect(0.96, 0.9, 1.05)),
        "step_window": Place(1.7, effect(1.03, 0.9, 1.1)),
        "packed": Place(2.6, LIKE_RANDOM),
        "sorted": Place(2.7, NOISY),
        "bucketed": Place(2.2, effect(1.5, 1.3, 1.8)),
        "vague": Place(2.65, VAGUE),
    }
    # That random's value is below packed's means nothing: both are as good as 1.
    assert dominated(places) == {"random": "packed", "step_window": "packed", "bucketed": "vague"}


def test_equal_strategies_do_not_dominate_each_other():
    assert dominated({"one": Place(1.0, LIKE_RANDOM), "other": Place(1.0, LIKE_RANDOM)}) == {}
