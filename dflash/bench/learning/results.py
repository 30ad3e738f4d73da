"""What a learning run found, as its JSON shows it: values in SI base units, null where there is none."""

from __future__ import annotations

import msgspec

from dflash.bench.document import Document
from dflash.bench.verdict import Verdict
from dflash.errors import ExitCode


class Bounds(msgspec.Struct, frozen=True):
    """A value with one-sided bounds, null where so few replicates cannot give any."""

    value: float
    low: float | None = None
    high: float | None = None


class LearningArm(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy."""

    strategy: str
    verdict: Verdict | None
    line: str
    """what a person should know of it"""
    metrics: dict[str, float | None] = {}
    intervals: dict[str, tuple[float, float]] = {}
    by_seed: dict[str, list[float | None]] = {}
    against_reference: dict[str, Bounds] = {}
    """ratios of final_loss and time_to_loss, the difference of forgetting"""
    points: list[Bounds] = []
    """the design effect at the start, a quarter and the end of the reference's runs"""
    micro_batch_loss_design_effect: Bounds | None = None
    frozen_windows: int = 0
    """that the design effects rest on, all seeds together"""
    basis: str = "windows"
    """over what their bounds are taken: windows or seeds"""
    lag_1_cosine: float | None = None
    successive_design_effect: float | None = None
    """what differences of successive windows alone would say"""
    random_diversity: float | None = None
    gradient_cosine: float | None = None
    noise_scale: float | None = None
    """in tokens"""
    noise_scale_withheld: str | None = None
    windows: int = 0
    """optimizer steps of one run"""
    real_tokens: int = 0
    short_weight: float | None = None
    long_weight: float | None = None
    """what a label of the shortest and of the longest third of the samples counts; 1 is fair"""
    drift_by_bin: tuple[float, ...] = ()
    """mean over the seeds; of short, middle and long held-out samples"""
    speed: float | None = None
    """over the reference's"""
    dominated_by: str | None = None
    error: str | None = None


class LearningReport(Document, frozen=True, kw_only=True):
    """A learning run."""

    schema_version: int = 1
    reference: str
    seeds: list[int]
    tokens: int
    """real tokens of one run"""
    pool_tokens: int
    level: float
    speed_measured: bool
    """or predicted by the plans"""
    arms: list[LearningArm]
    exit_code: ExitCode
    """3 where an arm has an error; a comparison decides nothing by itself"""
    notes: list[str]
    seconds: float
    cores: int

    def arm(self, strategy: str) -> LearningArm:
        """The arm of that name."""
        return next(arm for arm in self.arms if arm.strategy == strategy)
