"""Six seeds of made-up trials whose differences are known."""

from __future__ import annotations

import numpy as np
import pytest

from dflash.bench.learning.analysis import compare
from dflash.bench.learning.curves import CurvePoint
from dflash.bench.learning.design_effect import Effect
from dflash.bench.learning.exchange import FrozenPoint, LearningTrial, WindowPoint
from dflash.bench.learning.weighting import LengthWeights
from dflash.bench.verdict import Verdict
from dflash.pipeline.work import Counts

SEEDS, LEVEL = 6, 0.98


def point(log):
    influence = np.tile([1.0, -1.0], 16)
    effect = Effect(log, influence, 0.0, 0.0, 1.0)
    return FrozenPoint(effect, effect, effect, 0.8, 0.8, 0.1, None, "sorted")


def trial(name, seed, *, factor=1.0, spike=False, tokens=800, drift=0.0, logs=None):
    """Held-out loss 8 -> 4 over ``tokens``, times ``factor`` but at the start, where all are alike."""
    rng = np.random.default_rng(seed)
    base = np.linspace(8, 4, 9) + 0.01 * rng.standard_normal()
    losses = [8.0, *(base[1:] * factor).tolist()]
    curve = [
        CurvePoint(
            tokens * n // 8,
            loss,
            (loss + (drift if n == 8 else 0.0), loss, loss - (drift if n == 8 else 0.0)),
        )
        for n, loss in enumerate(losses)
    ]
    steps = 5 + 0.02 * rng.standard_normal(60)
    if spike:
        steps[30] += 3
        steps[45] += 3
    frozen = {key: [point(log + 0.01 * seed)] * 3 for key, log in (logs or {}).items()}
    return LearningTrial(
        strategy=name,
        seed=seed,
        plan_digests=[],
        first_weights="same",
        windows=[WindowPoint(10, float(step), 1.0) for step in steps],
        curve=curve,
        counts=Counts(samples=10, real_tokens=tokens, loss_tokens=50, anchor_slots=5),
        diversity=None,
        cosine=None,
        weights=LengthWeights(1.0, 1.0),
        seconds=1.0,
        frozen=frozen,
    )


def arms(logs, **candidate):
    trials = {
        "random": {seed: trial("random", seed, logs=logs) for seed in range(SEEDS)},
        "other": {seed: trial("other", seed, **candidate) for seed in range(SEEDS)},
    }
    return compare(["random", "other"], "random", trials, {}, {"random": 2.0, "other": 5.0}, True, LEVEL)


ALIKE = {"random": 0.0, "other": 0.0}


def test_equal_runs_are_ok():
    reference, other = arms(ALIKE, factor=1.001)
    assert (reference.verdict, other.verdict) == (Verdict.OK, Verdict.OK)
    assert other.line.startswith("other: 2.5x random's real tok/s, gradients like random's")
    assert "loss equal within 0.1 %" in other.line
    assert other.against_reference["final_loss"].value == pytest.approx(1.001, abs=1e-6)
    assert other.basis == "seeds"
    assert reference.dominated_by == "other"
    assert other.metrics["loss_spikes"] == 0


def test_a_higher_loss_comes_later_or_never():
    _, other = arms(ALIKE, factor=1.05)
    assert other.verdict == Verdict.REGRESSED
    assert "loss 5.0 % higher [+5.0, +5.0] %" in other.line
    # The reference is at 4.8 after 640 of 800 tokens: 1.05 times a loss is there at 4.571, after 685.7.
    assert other.by_seed["time_to_loss"][0] == pytest.approx(685.7, rel=0.01)
    _, never = arms(ALIKE, factor=1.3)
    assert "6 more seeds than random never reached its loss" in never.line
    assert never.metrics["time_to_loss"] is None, "a figure never stands for a part of the seeds"


def test_noisier_gradients_and_spikes_are_regressions():
    _, noisy = arms({"random": 0.0, "other": 0.9})
    assert noisy.verdict == Verdict.REGRESSED
    assert noisy.metrics["design_effect"] == pytest.approx(np.exp(0.925), rel=1e-3)
    assert noisy.intervals["design_effect"] == pytest.approx((np.exp(0.9), np.exp(0.95)))
    _, spiky = arms(ALIKE, spike=True)
    assert spiky.verdict == Verdict.REGRESSED
    assert "12 spikes against 0" in spiky.line


def test_forgetting_is_compared_by_seed():
    _, other = arms(ALIKE, drift=0.2)
    assert other.drift_by_bin == pytest.approx((0.2, 0.0, -0.2))
    drift = other.against_reference["forgetting"]
    assert (drift.value, drift.low) == (pytest.approx(0.2), pytest.approx(0.2))


def test_losses_of_unequal_token_counts_are_not_ranked():
    _, other = arms(ALIKE, factor=0.5, tokens=1600)
    assert other.verdict == Verdict.INCONCLUSIVE
    assert "losses not ranked: it saw 1600 real tokens, random 800" in other.line
    assert "final_loss" not in other.against_reference
