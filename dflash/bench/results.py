"""A run and its trials: the records, and their JSON.

NaN, null and zero are three things: a figure that is not finite is refused where it enters, null means that
it was not measured, and zero is zero. Later versions add fields with a default and rename none, so a record
of any older version loads.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dflash.bench import statistics
from dflash.bench.document import Document, not_finite
from dflash.bench.exchange import WindowFigures
from dflash.bench.learning.results import LearningReport
from dflash.bench.machine import Machine
from dflash.bench.metrics import METRICS
from dflash.bench.verdict import FLOOR, TOLERANCE, Verdict
from dflash.errors import ExitCode, TrialError

if TYPE_CHECKING:
    from dflash.batching.plan import IntArray
    from dflash.plugin_manager import StrategyRecord

SCHEMA_VERSION = 2


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One trial as it was measured.

    ``pair`` is unique within the run and holds at most one trial of the reference and one of a candidate;
    ``slot`` is the place in it, 0 or 1. ``losses`` has one entry per measured window, None for a window of
    weight zero, and ``windows`` its other figures. ``stages`` maps stage and state (busy, starved,
    blocked...) to the share of the wall time. ``steal_share`` is the CPU time that the hypervisor took, as a
    share of what the machine has; ``throttled`` holds the reasons for which a GPU was slowed down. A trial
    that is ``ok`` processed tokens and learned from them; TrialError otherwise, and on any figure that is
    not finite.
    """

    pair: int
    slot: int
    arm: str
    seed: int
    status: Literal["ok", "failed"]
    error: str | None = None
    metrics: dict[str, float | None] = {}
    losses: list[float | None] = []
    plan_digest: str | None = None
    stages: dict[str, dict[str, float]] = {}
    bottleneck: str | None = None
    steal_seconds: float | None = None
    load: float | None = None
    windows: list[WindowFigures] = []
    steal_share: float | None = None
    throttled: list[str] = []
    notes: list[str] = []

    def __post_init__(self) -> None:
        if (self.status == "failed") != (self.error is not None):
            raise TrialError(f"{self.where}: a trial has an error if, and only if, it failed")
        unknown = self.metrics.keys() - METRICS.keys()
        if unknown:
            raise TrialError(f"{self.where}: unknown metrics {', '.join(sorted(unknown))}")
        windows = [msgspec.structs.asdict(window) for window in self.windows]
        shares = [self.stages, self.steal_seconds, self.steal_share, self.load]
        wrong = not_finite([self.metrics, self.losses, windows, *shares])
        if wrong is not None:
            raise TrialError(
                f"{self.where}: a figure is {wrong}; metrics {self.metrics}, losses {self.losses}"
            )
        if self.status == "ok" and not (self.metrics.get("tok_s") or 0) > 0:
            raise TrialError(
                f"{self.where}: no real token was measured (tok_s is {self.metrics.get('tok_s')})"
            )
        if self.status == "ok" and all(loss is None for loss in self.losses):
            raise TrialError(f"{self.where}: no window had a loss")

    @property
    def where(self) -> str:
        return f"{self.arm}, pair {self.pair}, seed {self.seed}"

    @property
    def ok(self) -> bool:
        return self.status == "ok"


class Plugin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a strategy came from."""

    distribution: str
    version: str
    file_hash: str

    @classmethod
    def of(cls, record: StrategyRecord) -> Plugin:
        return cls(distribution=record.distribution, version=record.version, file_hash=record.sha256)


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy's part of a run; ``strategy`` is its display name, ``plan`` holds at least the digest.

    ``revision`` is the commit whose code an arm ran that another revision is compared with, ``inject`` the
    regression that was put into it on purpose.
    """

    strategy: str
    options: dict[str, Any]
    plugin: Plugin
    plan: dict[str, Any] = {}
    metrics: dict[str, float | None] = {}
    intervals: dict[str, tuple[float, float]] = {}
    error: str | None = None
    revision: str | None = None
    inject: str | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """``estimate``, ``low`` and ``high`` are the ratio strategy / reference of the metric itself.

    ``reference`` names the partner: another arm, or `baseline NAME`. ``gate`` is the gate as it was written;
    without one the comparison is information and decides nothing. ``tolerance`` and ``floor`` are shares of
    the reference's value, as is ``minimum_detectable``: the loss that so many pairs as noisy as these would
    have shown. ``suspicious`` is a gain too large to believe. ``advisory`` marks a clock held against one of
    another job, which never counts.
    """

    strategy: str
    reference: str
    metric: str
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    pairs: int = 0
    verdict: Verdict | None = None
    reason: str
    gate: str | None = None
    tolerance: float | None = None
    floor: float | None = None
    minimum_detectable: float | None = None
    suspicious: bool = False
    advisory: bool = False


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the run was asked to do; ``trainer`` holds the trainer's own settings."""

    token_budget: int
    accumulation: int
    drafters: int
    warmup_windows: int
    windows: int
    rounds: int
    seed: int
    level: float = statistics.LEVEL
    floor: float = FLOOR
    tolerance: float = TOLERANCE
    trainer: dict[str, Any] = {}
    gates: list[str] = []
    strict: bool = False
    on_inconclusive: Literal["pass", "fail"] = "pass"
    on_missing_baseline: Literal["pass", "fail"] = "fail"
    max_time: float | None = None


class Data(msgspec.Struct, frozen=True, kw_only=True):
    """What was planned or trained on; ``tokens`` are real tokens.

    ``fingerprint`` is the store's or the file's, ``lengths`` that of the planned lengths alone, by which
    exact baselines know their data.
    """

    name: str
    fingerprint: str
    samples: int
    tokens: int
    lengths: str | None = None


def lengths_fingerprint(lengths: IntArray) -> str:
    """By which planned lengths, int64[n], are known wherever they come from: SHA-256 in hexadecimal."""
    return hashlib.sha256(lengths.astype("<i8").tobytes()).hexdigest()


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """A commit, and whether the tree that ran had changes on top of it."""

    commit: str
    dirty: bool = False


class InvalidPair(msgspec.Struct, frozen=True, kw_only=True):
    """A pair that the rule for disturbed pairs struck out, and why."""

    pair: int
    reason: str


class BaselineUse(msgspec.Struct, frozen=True, kw_only=True):
    """The stored baseline of a run or of plans; ``differences`` is what keeps it from being compared."""

    name: str
    path: str
    differences: list[str] = []


class Run(Document, frozen=True, kw_only=True):
    """A whole run, as its JSON shows it. Later versions add keys and rename none.

    ``looks`` are the numbers of valid pairs at which the gates were judged; trials of an invalid pair are
    stored, and count in nothing. ``learning`` is null where no learning trial was asked for, or they did not
    all end.
    """

    schema_version: int = SCHEMA_VERSION
    run_id: str
    verdict: Verdict
    exit_code: ExitCode
    reference: str
    arms: list[Arm]
    comparisons: list[Comparison]
    settings: Settings
    data: Data
    machine: Machine
    looks: list[int] = msgspec.field(default_factory=list)
    invalid_pairs: list[InvalidPair] = msgspec.field(default_factory=list)
    learning: LearningReport | None = None
    baseline: BaselineUse | None = None
    revision: Revision | None = None
    against: Revision | None = None
    class_key: str = ""
    command_line: list[str] = msgspec.field(default_factory=list)

    @property
    def gates(self) -> list[Comparison]:
        """The comparisons that decide."""
        return [comparison for comparison in self.comparisons if comparison.gate is not None]
