from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.batching import windows
from dflash.batching.plan import PlanRequest
from dflash.errors import UsageError
from dflash.simulation.cost import CostModel, DrafterCost, LoadCost, TargetCost
from dflash.simulation.fit import fit
from dflash.simulation.shapes import AnchorRule, plan_shapes

LENGTHS = np.array([5, 9, 30, 2, 17, 64, 3, 3], dtype=np.int64)
REQUEST = PlanRequest(token_budget=200, seed=0, epoch=0, drafters=2, accumulation=1, tail="pad")
RULE = AnchorRule(max_anchors=4, anchor_stride=3, block_size=6)


def plan(layout):
    order = np.array([2, 0, 1, 5, 4, 3, 7, 6])
    offsets = np.array([0, 3, 4, 8])  # three micro-batches: the tail makes the fourth empty
    return windows.build(order, offsets, LENGTHS, REQUEST, order="given", layout=layout)


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_shapes_are_what_each_sample_adds(layout):
    made = plan(layout)
    shapes = plan_shapes(made, LENGTHS, REQUEST, RULE)
    order = [
        int(one) for window in range(2) for one in windows.assign(made, window, 2, LENGTHS, 16_000).ravel()
    ]
    assert sorted(order) == [0, 1, 2, 3]
    for place, number in enumerate(order):
        rows = [int(LENGTHS[sample]) for sample in made.batch(number)]
        computed = rows if layout == "packed" else [max(rows, default=0)] * len(rows)
        anchors = [min(4, -(-(row - 1) // 3)) for row in rows]
        assert shapes.real_tokens[place] == sum(rows)
        assert shapes.target_tokens[place] == sum(computed)
        assert shapes.target_squares[place] == sum(row * row for row in computed)
        assert shapes.anchors[place] == sum(anchors)
        assert shapes.anchor_context[place] == sum(a * row for a, row in zip(anchors, rows, strict=True))


@given(st.integers(2, 60), st.integers(2, 20), st.integers(1, 3))
def test_expected_labels_are_the_mean_over_all_places(length, block, anchors):
    """Each slot but the anchor's own has a label where the sample has a token."""
    by_place = [sum(place + slot < length for slot in range(1, block)) for place in range(length - 1)]
    rule = AnchorRule(8, 1, block)
    found = rule.labels(np.array([length]), np.array([anchors]))
    assert found[0] == pytest.approx(anchors * np.mean(by_place))


def test_samples_without_two_supervised_tokens_have_no_anchor():
    assert AnchorRule(8, 1, 16).count(np.array([1, 2, 3])).tolist() == [0, 1, 2]
    assert AnchorRule(8, 1, 16, supervised_share=0.5).count(np.array([2, 4, 100])).tolist() == [0, 1, 8]


def test_an_empty_micro_batch_costs_nothing():
    shapes = plan_shapes(plan("padded"), LENGTHS, REQUEST, RULE)
    empty = shapes.real_tokens == 0
    assert empty.sum() == 1
    for cost in (TargetCost(1, 1, 1), DrafterCost(1, 1, 1, 1, 1), LoadCost(1, 1)):
        assert (cost.seconds(shapes) == 0).tolist() == empty.tolist()


def test_the_end_of_a_window_is_a_ring():
    """Each of M devices sends 2 (M - 1) / M of the gradient; one drafter has nobody to send it to."""
    cost = CostModel(
        target={},
        drafter=DrafterCost(0, 0, 0, 0, 0),
        load=LoadCost(0, 0),
        feature_bytes=8,
        copy_bytes_per_second=100,
        optimizer_seconds=0.5,
        reduce_latency=0.25,
        reduce_bytes_per_second=1000,
        gradient_bytes=4000,
    )
    assert cost.commit_seconds(1) == 0.5
    assert cost.commit_seconds(4) == pytest.approx(0.5 + 0.25 + 2 * 3 / 4 * 4)
    shapes = plan_shapes(plan("packed"), LENGTHS, REQUEST, RULE)
    assert cost.copy_seconds(shapes) == pytest.approx(2 * shapes.real_tokens * 8 / 100)


@given(st.lists(st.floats(1e-4, 1), min_size=3, max_size=3), st.integers(0, 99))
def test_fit_finds_coefficients_without_noise(coefficients, seed):
    rng = np.random.default_rng(seed)
    terms = np.column_stack([np.ones(12), rng.integers(100, 5000, 12), rng.integers(10**4, 10**8, 12)])
    scaled = np.array(coefficients) / [1, 1e3, 1e7]
    found = fit(terms, terms @ scaled)
    assert found.coefficients == pytest.approx(scaled, rel=1e-4)
    assert found.largest_error < 1e-6


def test_fit_never_goes_below_zero_and_admits_what_it_cannot_explain():
    terms = np.column_stack([np.ones(6), np.arange(1.0, 7.0)])
    falling = 10.0 - np.arange(1.0, 7.0)
    found = fit(terms, falling)
    assert min(found.coefficients) == 0.0
    assert found.error > 0.3


def test_left_out_errors_are_those_of_fits_without_each_one():
    """One term: the fit without i of y / x is, by hand, the weighted mean of the others."""
    terms = np.array([[1.0], [2.0], [4.0]])
    seconds = np.array([1.0, 2.2, 3.6])
    rows = terms[:, 0] / seconds
    expected = []
    for left in range(3):
        others = np.delete(rows, left)
        expected.append(rows[left] * others.sum() / (others**2).sum() - 1)
    assert fit(terms, seconds).leave_one_out == pytest.approx(expected)


def test_fit_wants_more_micro_batches_than_coefficients():
    with pytest.raises(UsageError, match="3 measured micro-batches cannot give 3 coefficients"):
        fit(np.ones((3, 3)), [1, 2, 3])
