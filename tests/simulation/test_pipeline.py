"""The simulated pipeline against closed forms and an independent recursion."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.simulation.pipeline import Seconds, Topology, simulate

# E[max of M standard normals]; Tippett 1925.
KAPPA = {2: 0.564, 4: 1.029, 6: 1.267, 7: 1.352, 8: 1.424}


def run(topology, target, drafter, commit=0.0, **more):
    return simulate(topology, Seconds(np.asarray(target, float), np.asarray(drafter, float), commit, **more))


def recursion(target, drafter, depth):
    """When each micro-batch is trained by one target and one drafter: flow shop with `depth` slots."""
    trained, target_free, drafter_free = [], 0.0, 0.0
    for batch, (forward, step) in enumerate(zip(target, drafter, strict=True)):
        slot = trained[batch - depth] if batch >= depth else 0.0
        target_free = max(target_free, slot) + forward
        drafter_free = max(drafter_free, target_free) + step
        trained.append(drafter_free)
    return trained[-1]


def test_one_stage():
    """A target that costs nothing: the drafter works without a pause."""
    drafter = np.random.default_rng(0).random(12)
    timeline = run(Topology(1, 1, 4, 2), np.zeros(12), drafter, commit=0.5)
    ends = np.cumsum(drafter.reshape(3, 4).sum(axis=1) + 0.5)
    assert timeline.window_ends == pytest.approx(ends)
    assert timeline.drafters[0] == pytest.approx(
        {"busy": drafter.sum(), "commit": 1.5, "barrier": 0.0, "starved": 0.0, "blocked": 0.0}, abs=1e-9
    )


def test_one_slot_is_no_overlap_at_all():
    """The one slot is free again only when the drafter is done with it."""
    rng = np.random.default_rng(1)
    target, drafter = rng.random(40), rng.random(40)
    timeline = run(Topology(1, 1, 2, 0), target, drafter)
    assert timeline.window_ends[-1] == pytest.approx(target.sum() + drafter.sum())


def test_unlimited_depth_is_a_flow_shop():
    """Makespan of Johnson 1954: the longest path through target 0..k and drafter k..n."""
    rng = np.random.default_rng(2)
    target, drafter = rng.random(60), rng.random(60)
    path = max(target[: k + 1].sum() + drafter[k:].sum() for k in range(60))
    assert run(Topology(1, 1, 3, 60), target, drafter).window_ends[-1] == pytest.approx(path)


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=25), st.integers(1, 6))
@settings(max_examples=60)
def test_any_number_of_slots_is_the_recursion(pairs, depth):
    target, drafter = zip(*pairs, strict=True)
    ends = run(Topology(1, 1, 1, depth - 1), target, drafter).window_ends
    assert ends[-1] == pytest.approx(recursion(target, drafter, depth), abs=1e-9)


def test_without_variance_the_slower_stage_decides():
    for targets, drafters, forward, step in [
        (1, 1, 1.0, 3.0),
        (1, 1, 3.0, 1.0),
        (3, 2, 2.0, 1.0),
        (2, 4, 1.0, 3.0),
    ]:
        topology = Topology(targets, drafters, 4, 3)
        batches = 60 * topology.window_size
        ends = run(topology, np.full(batches, forward), np.full(batches, step)).window_ends
        per_window = (ends[-1] - ends[20]) / (len(ends) - 21)
        assert per_window == pytest.approx(max(topology.window_size * forward / targets, 4 * step))


@pytest.mark.parametrize("drafters", sorted(KAPPA))
@pytest.mark.parametrize(("variation", "accumulation"), [(0.1, 1), (0.3, 4), (0.5, 8)])
def test_the_barrier_costs_what_the_closed_form_says(drafters, variation, accumulation):
    """Efficiency ~ 1 / (1 + kappa_M * CV / sqrt(A)) where nothing but the barrier makes anyone wait."""
    size, windows = drafters * accumulation, 1600 // (drafters * accumulation) + 60
    steps = np.random.default_rng(drafters).gamma(1 / variation**2, variation**2, windows * size)
    timeline = run(Topology(1, drafters, accumulation, 64), np.zeros(windows * size), steps)
    efficiency = steps.sum() / drafters / timeline.window_ends[-1]
    expected = 1 / (1 + KAPPA[drafters] * variation / np.sqrt(accumulation))
    assert efficiency == pytest.approx(expected, rel=0.03)


def test_without_a_barrier_each_drafter_goes_its_own_way():
    steps = np.random.default_rng(3).random(8 * 30)
    timeline = run(Topology(1, 4, 2, 64, barrier=False), np.zeros(len(steps)), steps, commit=0.25)
    own = steps.reshape(-1, 4).sum(axis=0) + 30 * 0.25
    walls = [sum(one.values()) for one in timeline.drafters]
    assert [one["busy"] + one["commit"] for one in timeline.drafters] == pytest.approx(list(own))
    assert walls == pytest.approx([own.max()] * 4)


def test_zero_variance_has_no_barrier_wait():
    timeline = run(Topology(1, 8, 4, 8), np.zeros(32 * 10), np.full(32 * 10, 2.0), commit=1.0)
    assert timeline.window_ends == pytest.approx(9.0 * np.arange(1, 11))
    assert all(one["barrier"] == pytest.approx(0) for one in timeline.drafters)


@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 4),
    st.booleans(),
    st.integers(0, 9),
)
@settings(max_examples=60)
def test_every_workers_seconds_add_up(targets, drafters, accumulation, depth, load, seed):
    rng = np.random.default_rng(seed)
    batches = 6 * drafters * accumulation
    timeline = simulate(
        Topology(targets, drafters, accumulation, depth),
        Seconds(
            rng.random(batches),
            rng.random(batches),
            0.1,
            load=rng.random(batches) if load else None,
            transfer=rng.random(batches),
        ),
        warmup=2,
    )
    wall = timeline.window_ends[-1] - timeline.window_ends[1]
    for worker in (*timeline.targets, *timeline.drafters):
        assert min(worker.values()) >= -1e-9
        assert sum(worker.values()) == pytest.approx(wall)
    slots = Topology(targets, drafters, 1, depth).slots
    assert 0 <= timeline.ready_mean <= timeline.in_flight_mean <= slots * drafters + 1e-9


def test_a_full_pipeline_is_blocked_and_an_empty_one_starved():
    slow, quick = np.full(40, 1.0), np.full(40, 0.1)
    behind = run(Topology(1, 1, 2, 2), quick, slow).targets[0]
    assert behind["blocked"] > 0.8 * sum(behind.values())
    short = simulate(Topology(1, 1, 2, 2), Seconds(quick, quick, load=slow)).targets[0]
    assert short["starved"] > 0.8 * sum(short.values())
    assert short["blocked"] == pytest.approx(0)


def test_order_is_kept_whatever_target_finishes_first():
    """The second target is done at 1, but the drafter may only begin with micro-batch 0, at 10."""
    ends = run(Topology(2, 1, 1, 4), [10, 1, 1, 1], [1, 1, 1, 1]).window_ends
    assert ends == pytest.approx([11, 12, 13, 14])


def test_copies_delay_drafters_and_leave_targets_alone():
    one, copy = np.ones(8), np.full(8, 0.5)
    plain = run(Topology(1, 1, 1, 8), one, np.zeros(8)).window_ends
    copied = run(Topology(1, 1, 1, 8), one, np.zeros(8), transfer=copy).window_ends
    assert copied == pytest.approx(plain + 0.5)


def test_cores_are_shared_evenly():
    """Processor sharing of 2 cores by 3 workers that never wait: each gets two thirds of a core."""
    batches = 60
    alone = run(Topology(2, 1, 1, 30), np.full(batches, 2.0), np.full(batches, 1.0))
    shared = run(Topology(2, 1, 1, 30, cores=2), np.full(batches, 2.0), np.full(batches, 1.0))
    assert shared.window_ends[-1] == pytest.approx(batches * 3.0 / 2, rel=0.03)
    assert alone.window_ends[-1] == pytest.approx(batches * 1.0, rel=0.06)


def test_one_core_does_one_thing_after_another():
    rng = np.random.default_rng(4)
    target, drafter = rng.random(40), rng.random(40)
    ends = run(Topology(3, 2, 2, 3, cores=1), target, drafter, commit=0.5).window_ends
    assert ends[-1] == pytest.approx(target.sum() + drafter.sum() + 10 * 2 * 0.5)


def test_cores_enough_are_a_device_each():
    rng = np.random.default_rng(5)
    seconds = rng.random(48), rng.random(48)
    own, many = (run(Topology(2, 3, 2, 3, cores=cores), *seconds).window_ends for cores in (None, 8))
    assert many == pytest.approx(own)


def test_slowdown_counts_while_the_other_works():
    """The drafter's 4 s take twice as long beside a target that never rests, and 4 s alone."""
    slowdown = {"target": 1.0, "drafter": 2.0}
    beside = run(Topology(1, 1, 1, 2, cores=2), [1, 100], [4, 4], slowdown=slowdown).window_ends
    assert beside == pytest.approx([1 + 8, 101 + 4])


def test_whole_windows_only():
    with pytest.raises(ValueError, match="7 micro-batches are not whole windows of 4"):
        run(Topology(1, 2, 2, 1), np.ones(7), np.ones(7))
