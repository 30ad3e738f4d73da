"""What a held-out loss curve says: when a loss was reached, and what was forgotten on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BINS = ("short", "middle", "long")
"""Held-out samples by length, a third of them each."""


@dataclass(frozen=True)
class CurvePoint:
    """The held-out losses after so many real tokens."""

    tokens: int
    loss: float
    loss_by_bin: tuple[float, ...]
    """of BINS"""


def tokens_to(curve: Sequence[CurvePoint], loss: float) -> float | None:
    """Real tokens until the held-out loss was first at ``loss``, interpolated; None where it never was.

    The held-out samples are the same at every point, so there is no noise to be smoothed away.
    """
    before: CurvePoint | None = None
    for point in curve:
        if point.loss <= loss:
            if before is None:
                return float(point.tokens)
            share = (before.loss - loss) / (before.loss - point.loss)
            return before.tokens + share * (point.tokens - before.tokens)
        before = point
    return None


def target_loss(curves: Sequence[Sequence[CurvePoint]], share: float = 0.8) -> float:
    """The median over an arm's seeds of the held-out loss after ``share`` of the tokens."""
    losses = [
        np.interp(share * curve[-1].tokens, [p.tokens for p in curve], [p.loss for p in curve])
        for curve in curves
    ]
    return float(np.median(losses))


@dataclass(frozen=True)
class Forgetting:
    """By length: the difference of the last held-out losses, and how it drifted over the last quarter."""

    short_minus_long: float
    """nats per token at the end"""
    drift_by_bin: tuple[float, ...]
    """how much each of BINS rose over the last quarter beyond the mean of all; they sum to zero"""

    @property
    def most(self) -> float:
        """The largest rise beyond the mean, nats per token, never below zero: what was forgotten most."""
        return max(self.drift_by_bin)


def forgetting(curve: Sequence[CurvePoint]) -> Forgetting:
    """Compare the end of a curve with three quarters of it.

    A strategy that ends an epoch on long samples loses what it knew of short ones, while the mean loss hides
    it. What all bins have in common, such as the effect of a falling learning rate, cancels.
    """
    end = np.array(curve[-1].loss_by_bin)
    tokens = [point.tokens for point in curve]
    quarter = np.array(
        [
            np.interp(0.75 * tokens[-1], tokens, [point.loss_by_bin[number] for point in curve])
            for number in range(len(end))
        ]
    )
    rise = end - quarter
    return Forgetting(float(end[0] - end[-1]), tuple((rise - rise.mean()).tolist()))
