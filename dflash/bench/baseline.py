"""Stored baselines: what strategies gave earlier, as a small JSON file that a project commits.

Only what is exact is gated against one: the same lengths, request and code give it on every machine. Clocks
are kept beside it for information: held against those of another job they raise 27 to 37 % false alarms.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from dflash.bench import results, store
from dflash.bench.document import Document
from dflash.bench.gates import Rules
from dflash.bench.metrics import METRICS, change
from dflash.bench.results import Plugin
from dflash.errors import NoBaselineError, UsageError

SCHEMA_VERSION = 1
FOLDER = "baselines"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """All that a plan depends on beside the lengths and the strategy."""

    token_budget: int
    accumulation: int
    drafters: int
    seed: int
    epoch: int
    tail: str
    overlong: str


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """What was planned: the name it had, and the fingerprint that decides."""

    name: str
    fingerprint: str
    samples: int
    tokens: int


class Strategy(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy's figures: ``metrics`` are exact, ``clocks`` are not."""

    plugin: Plugin
    options: dict[str, Any]
    digest: str | None = None
    metrics: dict[str, float | None]
    clocks: dict[str, float] = {}


class Baseline(Document, frozen=True, kw_only=True):
    """A file of them. ``trial`` are the settings that a trial's own exact figures depend on, None if there
    were plans only; ``class_key`` is that of the machine that gave the clocks."""

    baseline: Literal["dflash"] = "dflash"
    schema_version: int = SCHEMA_VERSION
    lengths: Lengths
    request: Request
    trial: dict[str, Any] | None = None
    numpy: str | None
    revision: str | None = None
    class_key: str = ""
    strategies: dict[str, Strategy]


def make(
    data: results.Data,
    request: Request,
    arms: Sequence[results.Arm],
    *,
    trial: dict[str, Any] | None = None,
    numpy: str | None = np.__version__,
    revision: str | None = None,
    class_key: str = "",
) -> Baseline:
    """The baseline that these arms make. Raises UsageError for an arm that failed, and for none at all."""
    for arm in arms:
        if arm.error is not None:
            raise UsageError(f"no baseline of a failure; {arm.strategy}: {arm.error}")
    strategies = {arm.strategy: _entry(arm) for arm in arms if arm.revision is None}
    if not strategies:
        raise UsageError("no baseline of nothing: no strategy was measured")
    return Baseline(
        lengths=Lengths(
            name=Path(data.name).name,  # a folder of one machine tells others nothing
            fingerprint=lengths_of(data),
            samples=data.samples,
            tokens=data.tokens,
        ),
        request=request,
        trial=trial,
        numpy=numpy,
        revision=revision,
        class_key=class_key,
        strategies=strategies,
    )


def of_run(run: results.Run) -> Baseline:
    """The baseline that a stored run makes. Raises as make does."""
    return make(
        run.data,
        request_of(run.settings),
        run.arms,
        trial=trial_settings(run.settings),
        numpy=run.machine.versions.get("numpy"),
        revision=run.revision.commit if run.revision else None,
        class_key=run.class_key,
    )


def request_of(settings: results.Settings) -> Request:
    """What the plans of a run were asked for."""
    trainer = settings.trainer
    return Request(
        token_budget=settings.token_budget,
        accumulation=settings.accumulation,
        drafters=settings.drafters,
        seed=settings.seed,
        epoch=0,
        tail=trainer.get("batching", {}).get("tail", ""),
        overlong=trainer.get("data", {}).get("overlong", ""),
    )


def trial_settings(settings: results.Settings) -> dict[str, Any]:
    """What the exact figures of a trial depend on beside its plan, by the names of the settings."""
    drafter = settings.trainer.get("drafter", {})
    target = settings.trainer.get("data", {}).get("target")
    return {"windows": settings.windows, "target": target} | {
        f"drafter.{key}": value for key, value in drafter.items()
    }


def lengths_of(data: results.Data) -> str:
    """The fingerprint by which baselines know their data."""
    return data.lengths or data.fingerprint


def location(name: str, directory: Path = store.DIRECTORY) -> tuple[str, Path]:
    """How reports call the baseline of this name or path, and where it is."""
    if name.endswith(".json") or "/" in name:
        return Path(name).name, Path(name)
    return f"baseline {name}", directory / FOLDER / f"{name}.json"


def open_baseline(
    name: str | None, rules: Rules, directory: Path | None
) -> tuple[Baseline | None, results.BaselineUse | None]:
    """The baseline of a run that asks for ``name``, and what results say of it; None where it asks for none.

    One that is not there or empty raises NoBaselineError, unless a missing baseline is to pass. A broken
    one raises UsageError.
    """
    if name is None:
        return None, None
    label, path = location(name, directory or store.DIRECTORY)
    use = results.BaselineUse(name=label, path=str(path))
    stored = read(path) if path.exists() or rules.on_missing_baseline == "fail" else None
    if stored is None:
        return None, msgspec.structs.replace(use, differences=["there is none yet"])
    if not stored.strategies and rules.on_missing_baseline == "fail":
        raise NoBaselineError(f"{path}: the baseline is empty; dflash-bench baseline promote fills it")
    return stored, use


def read(path: Path) -> Baseline:
    """The baseline in ``path``; NoBaselineError if there is none, UsageError if it cannot be read."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise NoBaselineError(f"{path}: no such baseline; dflash-bench baseline save makes one") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot read the baseline ({error.strerror})") from None
    try:
        stored = msgspec.json.decode(content, type=Baseline)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not a baseline of dflash ({error}); save it again") from None
    if stored.schema_version > SCHEMA_VERSION:
        raise UsageError(
            f"{path}: schema version {stored.schema_version}, this dflash reads up to {SCHEMA_VERSION}; "
            "install a newer one"
        )
    return stored


def write(stored: Baseline, path: Path) -> None:
    """Write it, whole or not at all; UsageError if it cannot be."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(stored.to_json(indent=2) + b"\n")
        os.replace(temporary, path)
    except OSError as error:
        raise UsageError(f"{path}: cannot write the baseline ({error.strerror})") from error
    finally:
        temporary.unlink(missing_ok=True)


def changes(before: Baseline, after: Baseline) -> list[str]:
    """What differs between two baselines, a line for each strategy and metric."""
    lines = unequal(msgspec.to_builtins(before.request), msgspec.to_builtins(after.request))
    if before.lengths != after.lengths:
        lines.append(f"lengths: {before.lengths.samples} samples then, {after.lengths.samples} now")
    for name in sorted(before.strategies.keys() | after.strategies.keys()):
        old, new = before.strategies.get(name), after.strategies.get(name)
        if old is None or new is None:
            lines.append(f"{name}: {'new' if old is None else 'gone'}")
            continue
        for metric, value in new.metrics.items():
            was = old.metrics.get(metric)
            if was != value:
                ratio = f" ({change(metric, value / was)})" if was and value is not None else ""
                lines.append(f"{name}: {metric} {was} then, {value} now{ratio}")
    return lines


def _entry(arm: results.Arm) -> Strategy:
    exact = {name: arm.metrics.get(name) for name in METRICS if METRICS[name].gate_rule == "exact"}
    clocks = {name: arm.metrics.get(name) for name in METRICS if METRICS[name].gate_rule == "paired"}
    return Strategy(
        plugin=arm.plugin,
        options=arm.options,
        digest=arm.plan.get("digest"),
        metrics={name: value for name, value in exact.items() if name in arm.metrics},
        clocks={name: value for name, value in clocks.items() if value is not None},
    )


def unequal(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What two sets of settings have differently, in words."""
    return [
        f"{key} {then.get(key)} then, {now.get(key)} now"
        for key in dict.fromkeys([*then, *now])
        if then.get(key) != now.get(key)
    ]
