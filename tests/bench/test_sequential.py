from __future__ import annotations

import numpy as np
import pytest

from dflash.bench.metrics import METRICS
from dflash.bench.sequential import LEVEL, LOOKS, PILOT, forecast, next_look
from dflash.bench.statistics import SignedRanks, critical_value, signed_rank_distribution

TOK_S = METRICS["tok_s"]


def test_looks_are_at_ten_fifteen_and_twenty() -> None:
    assert [next_look(pairs) for pairs in (0, 8, 9, 10, 14, 15, 19, 20, 25)] == [
        10, 10, 10, 15, 15, 20, 20, None, None,
    ]  # fmt: skip


def test_three_looks_spend_two_percent_together() -> None:
    """Signs of independent symmetric noise are coins, whatever its sizes: this is the rate without a floor.

    To three standard errors of 40,000 runs, by rank sums and not by the code of the bounds.
    """
    rng = np.random.default_rng(5)
    runs = 40_000
    noise = rng.standard_normal((runs, LOOKS[-1]))
    alarm = np.zeros(runs, np.bool_)
    for look in LOOKS:
        seen = noise[:, :look]
        ranks = np.abs(seen).argsort(axis=1).argsort(axis=1) + 1
        critical = critical_value(signed_rank_distribution(look), LEVEL)
        assert critical is not None
        alarm |= (ranks * (seen > 0)).sum(axis=1) <= critical
    assert alarm.mean() == pytest.approx(0.02, abs=3 * np.sqrt(0.02 * 0.98 / runs))


def test_a_forecast_from_a_pilot_holds_at_the_look_it_names() -> None:
    """What a pilot of eight pairs says that 15 show is shown by 15 in nine of ten runs, or some more."""
    rng = np.random.default_rng(6)
    noise = 0.05
    pilots = [forecast(TOK_S, row, 0.05, 0.02) for row in noise * rng.standard_normal((400, PILOT))]
    least = np.mean([pilot.minimum_detectable[15] for pilot in pilots if pilot is not None])
    shift = np.log1p(-least)
    found = [SignedRanks(shift + row) for row in noise * rng.standard_normal((1500, 15))]
    caught = np.mean([r.p_below() <= 1 - LEVEL and r.interval().estimate <= np.log(0.98) for r in found])
    assert 0.9 <= caught <= 0.97


def test_a_forecast_names_the_first_look_that_is_enough_and_says_when_none_is() -> None:
    steps = np.linspace(-1, 1, PILOT)
    quiet, noisy, wild = (forecast(TOK_S, spread * steps, 0.05, 0.02) for spread in (0.01, 0.055, 0.5))
    assert quiet is not None and quiet.look == 10
    assert quiet.reason.startswith("5 % of tok_s should show in 10 pairs, which resolve 2.")
    assert noisy is not None and noisy.look in (15, 20)
    assert wild is not None and wild.look is None
    last = f"{100 * wild.minimum_detectable[20]:.1f} %"
    assert wild.reason == f"5 % of tok_s cannot be resolved here: 20 pairs show {last} at the least"
    for plan in (quiet, noisy, wild):
        shares = [plan.minimum_detectable[look] for look in LOOKS]
        assert shares == sorted(shares, reverse=True)


def test_four_pairs_are_no_pilot() -> None:
    assert forecast(TOK_S, np.array([0.0, 0.1, 0.2, 0.3]), 0.05, 0.02) is None
