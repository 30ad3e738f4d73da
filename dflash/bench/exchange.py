"""What the harness and a trial's process tell each other. Plain values, and no import that costs.

The process may be of another revision: each side passes over what it does not know, and what a later version
added has a default.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from dflash.bench.machine import Machine
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
    inject: str | None = None
    """a loss that is put in on purpose, such as ``tok_s:10%``, to see whether it is found"""


class WindowFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One measured window: seconds from the commit before it to its own, what it held, what it taught."""

    seconds: float
    real_tokens: int
    padded_tokens: int
    loss_tokens: int
    loss: float | None
    """sum of weighted losses / sum of weights; None where the window has no weight"""
    gradient_norm: float
    """before clipping"""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What a trial found. Plain values, to be sent to another process."""

    metrics: dict[str, float | None]
    losses: list[float | None]
    """of the measured windows"""
    plan_digest: str
    windows_per_epoch: int
    stages: dict[str, dict[str, float]]
    """share of the wall time of each stage's activities over the measured windows"""
    bottleneck: str
    steal_seconds: float | None
    """CPU seconds that the hypervisor took over the measured windows, all cores together"""
    load: float | None
    """one-minute load average before the trial"""
    windows: list[WindowFigures] = field(default_factory=list)
    """the measured ones, in the order in which they were trained"""
    steal_share: float | None = None
    """the steal as a share of the machine's cores' time"""
    throttled: list[str] = field(default_factory=list)
    """why GPUs ran slower than they can"""
    notes: list[str] = field(default_factory=list)
    """in words, what makes the figures weaker than they look"""
    machine: Machine | None = None
    """as the trial's process sees it, with its GPUs and the builds of its libraries"""


@dataclass(frozen=True)
class Failure:
    """Why a trial has no measurement: one line, and the traceback for those who want it."""

    message: str
    traceback: str
