"""What a learning trial is told, and what it answers. Plain values, for another process."""

from __future__ import annotations

from dataclasses import dataclass, field

from dflash.bench.exchange import Failure
from dflash.bench.learning.curves import CurvePoint
from dflash.bench.learning.design_effect import Effect
from dflash.bench.learning.weighting import LengthWeights
from dflash.config import Config
from dflash.pipeline.work import Counts


@dataclass(frozen=True)
class LearningTrialRequest:
    """One strategy trained from one seed. ``config.training.seed`` is that seed."""

    strategy: str
    config: Config
    tokens: int
    """real tokens of the samples that are trained, once each"""
    pool_tokens: int
    """real tokens of the samples whose gradients are measured"""
    measured: tuple[str, ...] = ()
    """strategies whose design effects are measured at this trial's weights; none in most trials"""
    blocked: tuple[str, ...] = ()


@dataclass(frozen=True)
class WindowPoint:
    """One window of a trial."""

    real_tokens: int
    loss: float | None
    gradient_norm: float


@dataclass(frozen=True)
class FrozenPoint:
    """What a strategy's windows are like at weights that stand still. None where nothing varies."""

    gradient: Effect | None
    """of the windows"""
    loss_window: Effect | None
    loss_micro_batch: Effect | None
    diversity: float | None
    """Yin's, mean over the windows"""
    random_diversity: float | None
    """the same for the same samples dealt at random to micro-batches of equal real tokens"""
    cosine: float | None
    """between the micro-batches of a window, mean over pairs and windows"""
    noise_scale: float | None
    """in tokens"""
    noise_scale_withheld: str | None
    """why there is none"""


@dataclass(frozen=True)
class LearningTrial:
    """A strategy's run from one seed."""

    strategy: str
    seed: int
    plan_digests: list[str]
    first_weights: str
    """digest of the drafter's weights before the first window"""
    windows: list[WindowPoint]
    curve: list[CurvePoint]
    counts: Counts
    diversity: float | None
    """Yin's, in the training windows, mean"""
    cosine: float | None
    weights: LengthWeights
    seconds: float
    frozen: dict[str, list[FrozenPoint] | str] = field(default_factory=dict)
    """by strategy, at the start, a quarter and the end of this run; or why there is none"""


Answer = LearningTrial | Failure
"""of one learning trial"""
