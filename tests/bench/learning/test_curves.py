from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.bench.learning.curves import CurvePoint, forgetting, target_loss, tokens_to


def curve(losses, bins=None, step=100):
    bins = bins or [(loss, loss, loss) for loss in losses]
    return [CurvePoint(step * n, loss, some) for n, (loss, some) in enumerate(zip(losses, bins, strict=True))]


def test_the_time_to_a_loss_is_interpolated():
    falling = curve([8.0, 6.0, 5.0, 4.5])
    assert tokens_to(falling, 5.5) == 150
    assert tokens_to(falling, 6.0) == 100
    assert tokens_to(falling, 9.0) == 0
    assert tokens_to(falling, 4.4) is None, "censored: it never got there"


def test_the_first_time_counts():
    assert tokens_to(curve([8.0, 4.0, 9.0, 3.0]), 6.0) == 50


def test_the_loss_to_reach_is_the_median_at_four_fifths():
    curves = [curve([10.0, 8.0, 6.0, 4.0, 2.0, 1.0 + k]) for k in range(3)]
    assert target_loss(curves) == pytest.approx(2.0)
    assert target_loss([curve([10.0, 0.0])]) == pytest.approx(2.0)


def test_forgetting_is_what_one_bin_loses_while_the_others_gain():
    start = (5.0, 5.0, 5.0)
    bins = [start, start, start, (4.0, 5.0, 6.0), (4.6, 4.8, 5.4)]
    found = forgetting(curve([5.0] * 5, bins))
    assert found.short_minus_long == pytest.approx(-0.8)
    # Rises over the last quarter: +0.6, -0.2, -0.6, whose mean is -0.0667.
    assert found.drift_by_bin == pytest.approx((0.6667, -0.1333, -0.5333), abs=1e-3)
    assert found.most == pytest.approx(0.6667, abs=1e-3)


@given(st.lists(st.tuples(*[st.floats(1, 9)] * 3), min_size=2, max_size=9), st.floats(-2, 2))
def test_what_all_bins_share_is_no_forgetting(bins, shared):
    plain = forgetting(curve([5.0] * len(bins), bins))
    moved = [
        tuple(np.add(point, shared * number / (len(bins) - 1)).tolist()) for number, point in enumerate(bins)
    ]
    assert forgetting(curve([5.0] * len(bins), moved)).drift_by_bin == pytest.approx(
        plain.drift_by_bin, abs=1e-9
    )
    assert sum(plain.drift_by_bin) == pytest.approx(0, abs=1e-9)
    assert plain.most >= -1e-12
