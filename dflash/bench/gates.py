"""Gates: which metric may lose how much before a run fails, as written after --fail-on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from dflash.bench import metrics
from dflash.bench.metrics import Metric
from dflash.bench.verdict import FLOOR, Outcome, Verdict
from dflash.errors import UsageError

Policy = Literal["pass", "fail"]


@dataclass(frozen=True)
class Gate:
    """``tolerance`` is the loss, a share of the partner's value, that must be caught."""

    text: str
    metric: Metric
    tolerance: float
    strategy: str | None = None
    """whom it binds, by display name or by the strategy's plain name; everyone if None"""

    def binds(self, arm: str) -> bool:
        """Whether the arm of this display name is meant."""
        return self.strategy in (None, arm, plain_name(arm))


@dataclass(frozen=True)
class Rules:
    """All that decides about a run beside its figures. ``floor`` is a share: smaller losses never fail."""

    gates: tuple[Gate, ...] = ()
    floor: float = FLOOR
    strict: bool = False
    on_inconclusive: Policy = "pass"
    on_missing_baseline: Policy = "fail"

    def gate_of(self, arm: str, metric: str) -> Gate | None:
        """The gate that binds an arm's metric, the most particular one: a display name before a plain one."""
        found = [gate for gate in self.gates if gate.metric.name == metric and gate.binds(arm)]
        return max(found, key=lambda gate: (gate.strategy == arm, gate.strategy is not None), default=None)

    def outcome(
        self,
        verdicts: Iterable[Verdict | None],
        *,
        measured: int,
        failed: int = 0,
        suspicious: bool = False,
        interrupted: bool = False,
        misused: bool = False,
    ) -> Outcome:
        """What the exit code is made of, under these rules."""
        return Outcome(
            measured=measured,
            failed=failed,
            gates=tuple(verdicts),
            suspicious=suspicious,
            interrupted=interrupted,
            misused=misused,
            strict=self.strict,
            on_inconclusive=self.on_inconclusive,
            on_missing_baseline=self.on_missing_baseline,
        )


def plain_name(arm: str) -> str:
    """The strategy in a display name: without options, revision and distribution."""
    return re.split(r"[:@]", arm, maxsplit=1)[0].rpartition("/")[2]


def parse_gate(text: str) -> Gate:
    """The gate in ``[STRATEGY.]METRIC[:PERCENT]``, such as `tok_s:5%` or `bucketed.padding_efficiency:0.1%`.

    Metrics of learning trials have a tolerance of their own, which stands where no percentage does.

    Raises UsageError for any other form, an unknown metric, and one that nothing in a run can decide.
    """
    where = f"--fail-on {text!r}"
    if not text.strip():
        raise UsageError(f"{where}: write [STRATEGY.]METRIC:PERCENT, e.g. tok_s:5%")
    # From the right, since options before the metric may hold a colon or a dot of their own.
    strategy, name, size = _parts(text.strip())
    try:
        metric = metrics.gate_metric(name)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    if size is not None:
        tolerance = parse_percent(size, where)
    elif metric.tolerance is not None:
        tolerance = metric.tolerance
    else:
        raise UsageError(f"{where}: write [STRATEGY.]METRIC:PERCENT, e.g. tok_s:5%")
    if metric.direction == "higher" and tolerance >= 1:
        raise UsageError(f"{where}: {name} cannot lose 100% and still be measured")
    if metric.tolerance == 0 and tolerance:
        raise UsageError(f"{where}: {name} counts events, of which no share can be lost; write {name}:0%")
    return Gate(text.strip(), metric, tolerance, strategy or None)


def _parts(text: str) -> tuple[str, str, str | None]:
    """Strategy, metric and percentage as they are written."""
    named, colon, size = text.rpartition(":")
    plain = text.rpartition(".")[2]
    if not colon or plain in metrics.LEARNING_METRICS:
        strategy, _, name = text.rpartition(".")
        return strategy, name, None
    strategy, _, name = named.rpartition(".")
    return strategy, name, size


def parse_gates(texts: Iterable[str]) -> tuple[Gate, ...]:
    """All of them; UsageError where two bind one metric of the same strategies."""
    gates = tuple(parse_gate(text) for text in texts)
    seen: dict[tuple[str | None, str], Gate] = {}
    for gate in gates:
        other = seen.setdefault((gate.strategy, gate.metric.name), gate)
        if other is not gate:
            raise UsageError(f"--fail-on {gate.text!r} and {other.text!r} bind one metric: keep one")
    return gates


def parse_percent(text: str, where: str) -> float:
    """A share of one from `5%` or `0.1%`: digits with a decimal dot, whatever the locale; else UsageError."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*%", text.strip(), re.ASCII)
    if not found:
        raise UsageError(f"{where}: {text!r} is no percentage; write it like 5% or 0.1%")
    return float(found[1]) / 100
