from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.batching.composition import padding_efficiency
from dflash.batching.plan import BatchPlan, PlanRequest
from dflash.batching.planning import make_plan
from dflash.bench.exchange import Measurement, TrialRequest
from dflash.bench.injection import parse, slowed, stretched, worsened
from dflash.bench.trial import measure_trial
from dflash.errors import PlanError, UsageError
from dflash.models.target import Target
from dflash.plugin_manager import PluginManager
from dflash.training.optimizer import Optimizer
from dflash.training.step import DrafterStep

PADDED = ["bucketed", "random", "sorted", "windowed", "step_window"]


def request(budget: int = 4096, seed: int = 0, accumulation: int = 2, tail: str = "spread") -> PlanRequest:
    return PlanRequest(budget, seed, 0, 1, accumulation, tail)  # type: ignore[arg-type]


def plan(name: str, lengths: np.ndarray, asked: PlanRequest, inject: str | None) -> BatchPlan:
    """As a trial plans: with the framework's certificate."""
    (arm,) = PluginManager().arms(name)
    return make_plan(worsened(arm.strategy, inject), lengths, asked, name=name)[0]


@pytest.mark.parametrize("name", PADDED)
@pytest.mark.parametrize("samples", [300, 3000])
def test_a_plan_loses_the_share_it_is_told_to_and_stays_certified(name: str, samples: int) -> None:
    rng = np.random.default_rng(samples)
    lengths = np.clip(rng.lognormal(5.5, 0.9, samples), 16, 1024).astype(np.int64)
    before, after = (plan(name, lengths, request(), inject) for inject in (None, "padding_efficiency:1%"))
    kept = padding_efficiency(after, lengths) / padding_efficiency(before, lengths)
    # At most one exchange too many: none adds more than a micro-batch of 4096 tokens.
    assert 0.99 - 4096 / lengths.sum() <= kept <= 0.99
    assert np.array_equal(after.batch_offsets, before.batch_offsets)
    assert np.array_equal(after.window_offsets, before.window_offsets)
    assert sorted(after.samples) == sorted(before.samples)


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=60),
    st.sampled_from(PADDED),
    st.sampled_from(["spread", "pad", "drop"]),
    st.sampled_from([0.01, 0.05, 0.3]),
)
def test_whatever_the_lengths_a_worse_plan_is_right_or_refused(
    lengths: list[int], name: str, tail: str, share: float
) -> None:
    values, asked = np.array(lengths), request(1000, tail=tail)
    before = padding_efficiency(plan(name, values, asked, None), values)
    try:
        after = padding_efficiency(plan(name, values, asked, f"padding_efficiency:{100 * share:g}%"), values)
    except PlanError as error:
        assert "the budget leaves room for" in str(error)
        return
    assert np.isnan(before) or after <= (1 - share) * before * (1 + 1e-12)


def test_the_same_plan_is_made_worse_in_the_same_way() -> None:
    lengths = np.random.default_rng(1).integers(16, 1024, 500)
    one, other = (plan("bucketed", lengths, request(), "padding_efficiency:1%") for _ in range(2))
    assert one.digest() == other.digest()


def test_a_plan_without_padding_cannot_lose_efficiency_by_it() -> None:
    with pytest.raises(PlanError, match=r"'packed' failed: .*it has no padding"):
        plan("packed", np.full(50, 100), request(), "padding_efficiency:1%")


def test_a_strategy_that_nothing_is_injected_into_is_itself() -> None:
    (arm,) = PluginManager().arms("random")
    assert worsened(arm.strategy, None) is arm.strategy
    assert worsened(arm.strategy, "tok_s:10%") is arm.strategy


@pytest.mark.parametrize(
    "text",
    ["", "tok_s", "tok_s:", "tok_s:abc", "tok_s:0%", "tok_s:100%", "tok_s:10", "speed:10%", "tok_s:1,5%"],
)
def test_what_is_no_injection_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--inject"):
        parse(text)


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_stretched_work_takes_its_share_of_the_cpu_time(share: float) -> None:
    """In the thread's own CPU time, which no other process changes."""
    matrix = np.random.default_rng(0).random((160, 160))

    def work() -> int:
        for _ in range(60):
            matrix @ matrix
        return 7

    longer = stretched(work, share)
    ratios = []
    for _ in range(7):
        start = time.thread_time()
        work()
        middle = time.thread_time()
        assert longer() == 7
        ratios.append((time.thread_time() - middle) / (middle - start))
    assert np.median(ratios) == pytest.approx(1 / (1 - share), rel=0.1)


def test_stages_are_themselves_again_afterwards() -> None:
    methods = Target.features, Target.packed_features, DrafterStep.add, Optimizer.commit
    with slowed("tok_s:10%"):
        assert Target.features is not methods[0] and DrafterStep.add is not methods[2]
    with pytest.raises(RuntimeError, match="an error"), slowed("tok_s:10%"):
        raise RuntimeError("an error")
    with slowed(None), slowed("padding_efficiency:1%"):
        assert (Target.features, Target.packed_features, DrafterStep.add, Optimizer.commit) == methods
    assert (Target.features, Target.packed_features, DrafterStep.add, Optimizer.commit) == methods


def test_a_slowed_trial_works_more_and_learns_the_same(small_config) -> None:
    def trial(inject: str | None) -> Measurement:
        return measure_trial(TrialRequest("random", small_config, 1, 6, inject=inject))

    before, after, worse = (trial(inject) for inject in (None, "tok_s:80%", "padding_efficiency:1%"))
    assert (after.losses, after.plan_digest) == (before.losses, before.plan_digest)
    cpu_before, cpu_after = (m.metrics["cpu_seconds"] for m in (before, after))
    assert cpu_before and cpu_after and cpu_after > 2 * cpu_before
    assert worse.plan_digest != before.plan_digest
    padding_before, padding_after = (m.metrics["padding_efficiency"] for m in (before, worse))
    assert padding_before and padding_after and padding_after <= 0.99 * padding_before
