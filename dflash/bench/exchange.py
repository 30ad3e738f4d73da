"""What the harness and a trial's process tell each other. Plain values, and no import that costs."""

from __future__ import annotations

from dataclasses import dataclass

from dflash.config import Config


@dataclass(frozen=True)
class TrialRequest:
    """What a trial's process is told. Everything else it finds out by itself."""

    strategy: str
    """with its options, as on the command line"""
    config: Config
    warmup: int
    """windows committed before the clock starts, at least one"""
    windows: int
    """windows measured"""
    blocked: tuple[str, ...] = ()
    """plugins not to load"""


@dataclass(frozen=True)
class Measurement:
    """What a trial found. Plain values, to be sent to another process."""

    metrics: dict[str, float | None]
    losses: list[float | None]
    plan_digest: str
    windows_per_epoch: int
    stages: dict[str, dict[str, float]]
    bottleneck: str
    steal_seconds: float | None
    load: float | None


@dataclass(frozen=True)
class Failure:
    """Why a trial has no measurement: one line, and the traceback for those who want it."""

    message: str
    traceback: str
