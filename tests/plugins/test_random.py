from __future__ import annotations

from collections import Counter

import numpy as np

from dflash.batching.composition import measure
from dflash.batching.plan import PlanRequest
from dflash.batching.planning import make_plan
from dflash_plugins.random import Random


def test_all_orders_are_equally_likely() -> None:
    """Chi-squared over the 6 orders of 3 samples: below 20.5 with probability 0.999 (5 degrees)."""
    draws = 1_200
    orders = Counter(
        tuple(make_plan(Random(), [1, 1, 1], PlanRequest(3, seed, 0, 1, 1, "spread"))[0].samples.tolist())
        for seed in range(draws)
    )
    assert len(orders) == 6
    assert sum((count - draws / 6) ** 2 / (draws / 6) for count in orders.values()) < 20.5


def test_windows_vary_in_mean_length_as_independent_draws_do() -> None:
    """Variance of a window's mean length x rows / variance of lengths is 1 for an ideal mixture."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(100, 200, 60_000)
    plan, used = make_plan(Random(), lengths, PlanRequest(4_000, 0, 0, 4, 1, "drop"))
    c = measure(plan, used)
    ratio = np.mean((c.window_mean_length - lengths.mean()) ** 2 * c.window_rows) / lengths.var()
    assert 0.8 < ratio < 1.25  # about 750 windows: a standard error of 0.05
