from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.models.acceptance import Acceptance

BLOCK = 5
RESPONSES = st.lists(st.lists(st.integers(1, BLOCK), max_size=9), max_size=6)


def acceptance(responses):
    return Acceptance(BLOCK, [np.array(lengths, np.int64) for lengths in responses])


@given(RESPONSES)
def test_every_figure_counts_the_same_verifications(responses):
    found = acceptance(responses)
    every = [length for lengths in responses for length in lengths]
    assert found.histogram_B.tolist() == [every.count(length) for length in range(1, BLOCK + 1)]
    assert found.tokens == sum(1 + sum(lengths) for lengths in responses)
    assert found.target_forwards == sum(1 + len(lengths) for lengths in responses)
    if not every:
        assert (found.tau, found.pooled_tau) == (None, None)
        return
    assert found.pooled_tau == pytest.approx(sum(every) / len(every))
    means = [sum(lengths) / len(lengths) for lengths in responses if lengths]
    assert found.tau == pytest.approx(sum(means) / len(means))
    for slot, share in enumerate(found.slots_B, start=1):
        assert share == pytest.approx(sum(length > slot for length in every) / len(every))
    assert found.slots_B.sum() == pytest.approx(found.pooled_tau - 1)
    assert found.forwards_saved == pytest.approx(1 - found.target_forwards / found.tokens)


def test_long_responses_weigh_more_in_the_pooled_mean_only():
    found = acceptance([[5], [1, 1, 1]])
    assert (found.tau, found.pooled_tau) == (3.0, 2.0)


def test_interval_is_students():
    """Means 2 and 4: mean 3, standard error 1, and 12.706 standard errors for one degree of freedom."""
    low, high = acceptance([[2, 2], [3, 5]]).tau_interval()
    assert (3 - low, high - 3) == (pytest.approx(12.706, abs=1e-3), pytest.approx(12.706, abs=1e-3))
    assert acceptance([[2, 2], []]).tau_interval() is None


def test_a_drafter_that_is_worth_nothing_saves_nothing():
    found = acceptance([[1] * 7, [1] * 3])
    assert (found.tau, found.forwards_saved) == (1.0, 0.0)


def test_nothing_decoded_is_no_figure():
    found = acceptance([])
    assert (found.tau, found.pooled_tau, found.tau_interval(), found.forwards_saved) == (None,) * 4
    assert found.histogram_B.tolist() == [0] * BLOCK
