"""The tables of a stored run: their explicit schemas, and rows from records and back.

Any Parquet reader sees flat tables, with the metrics as columns of a trial. Types are stated, so a column
that is null in every row keeps its own, and the files of many runs read as one data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from dflash.bench.exchange import WindowFigures
from dflash.bench.metrics import METRICS
from dflash.bench.results import Run, Trial

if TYPE_CHECKING:
    import pyarrow as pa

TABLES = ("windows", "trials", "comparisons", "runs")
"""In the order in which they are written: a run exists from the moment that its row of `runs` does."""

VERSION_KEY = b"dflash.schema_version"
_METRICS_KEY = b"dflash.metrics"  # what the columns mean: unit, better side, gate rule


def tables(run: Run, trials: Sequence[Trial]) -> dict[str, pa.Table]:
    """Every table of a run, by name."""
    import pyarrow as pa

    schemas = _schemas()
    rows = {
        "runs": [_run_row(run)],
        "comparisons": [msgspec.to_builtins(one) for one in run.comparisons],
        "trials": [_trial_row(trial) for trial in trials],
        "windows": [
            {"pair": trial.pair, "arm": trial.arm, "window": number} | msgspec.structs.asdict(window)
            for trial in trials
            for number, window in enumerate(trial.windows)
        ],
    }
    metadata: dict[bytes | str, bytes | str] = {
        VERSION_KEY: str(run.schema_version).encode(),
        _METRICS_KEY: msgspec.json.encode(list(METRICS.values())),
    }
    return {
        name: pa.Table.from_pylist(
            [{"run_id": run.run_id} | row for row in rows[name]], schema=schemas[name].with_metadata(metadata)
        )
        for name in TABLES
    }


def columns(table: str) -> list[str]:
    """The columns of a table, in order."""
    return list(_schemas()[table].names)


def trials_of(trials: Sequence[dict[str, Any]], windows: Sequence[dict[str, Any]]) -> list[Trial]:
    """The trials in the rows of the tables `trials` and `windows`, of this version or an older one.

    Columns that this version does not know are passed over, and those that it misses have their defaults.
    Raises what msgspec and Trial do for rows that make no sense.
    """
    of_trial: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in sorted(windows, key=lambda row: row["window"]):
        of_trial.setdefault((row["pair"], row["arm"]), []).append(row)
    return [trial_of(row, of_trial.get((row["pair"], row["arm"]), [])) for row in trials]


def trial_of(row: dict[str, Any], windows: Sequence[dict[str, Any]] = ()) -> Trial:
    """One trial; see trials_of."""
    known = {key: row[key] for key in Trial.__struct_fields__ if key in row}
    stages = {stage: dict(shares) for stage, shares in row["stages"]}
    metrics = {name: row[name] for name in METRICS if name in row}
    figures = msgspec.convert([dict(window) for window in windows], list[WindowFigures])
    return msgspec.convert(
        known | {"stages": stages, "metrics": metrics, "windows": figures}, type=Trial, from_attributes=True
    )


def _run_row(run: Run) -> dict[str, Any]:
    from ulid import ULID

    began = ULID.from_str(run.run_id).datetime
    return {
        "time": began if began.tzinfo else datetime.fromtimestamp(began.timestamp(), UTC),
        "verdict": run.verdict.value,
        "exit_code": int(run.exit_code),
        "reference": run.reference,
        "arms": [arm.strategy for arm in run.arms],
        "plugins": [
            f"{arm.plugin.distribution} {arm.plugin.version} {arm.plugin.file_hash}" for arm in run.arms
        ],
        "revision": run.revision.commit if run.revision else None,
        "dirty": run.revision.dirty if run.revision else None,
        "class_key": run.class_key,
        "data": run.data.name,
        "fingerprint": run.data.fingerprint,
        "command_line": run.command_line,
        "document": run.to_json().decode(),
    }


def _trial_row(trial: Trial) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.structs.asdict(trial)
    figures: dict[str, Any] = dict.fromkeys(METRICS) | row.pop("metrics")
    del row["windows"]
    return row | figures


def _schemas() -> dict[str, pa.Schema]:
    import pyarrow as pa

    text, whole, real, yes = pa.string(), pa.int64(), pa.float64(), pa.bool_()
    columns: dict[str, list[tuple[str, Any]]] = {
        "runs": [
            ("time", pa.timestamp("us", "UTC")),
            ("verdict", text),
            ("exit_code", whole),
            ("reference", text),
            ("arms", pa.list_(text)),
            ("plugins", pa.list_(text)),
            ("revision", text),
            ("dirty", yes),
            ("class_key", text),
            ("data", text),
            ("fingerprint", text),
            ("command_line", pa.list_(text)),
            ("document", text),
        ],
        "trials": [
            ("pair", whole),
            ("slot", whole),
            ("arm", text),
            ("seed", whole),
            ("status", text),
            ("error", text),
            *((name, real) for name in METRICS),
            ("losses", pa.list_(real)),
            ("plan_digest", text),
            ("stages", pa.map_(text, pa.map_(text, real))),
            ("bottleneck", text),
            ("steal_seconds", real),
            ("steal_share", real),
            ("load", real),
            ("throttled", pa.list_(text)),
            ("notes", pa.list_(text)),
        ],
        "windows": [
            ("pair", whole),
            ("arm", text),
            ("window", whole),
            ("seconds", real),
            ("real_tokens", whole),
            ("padded_tokens", whole),
            ("loss_tokens", whole),
            ("loss", real),
            ("gradient_norm", real),
        ],
        "comparisons": [
            ("strategy", text),
            ("reference", text),
            ("metric", text),
            ("estimate", real),
            ("low", real),
            ("high", real),
            ("pairs", whole),
            ("verdict", text),
            ("reason", text),
            ("gate", text),
            ("tolerance", real),
            ("floor", real),
            ("minimum_detectable", real),
            ("suspicious", yes),
            ("advisory", yes),
        ],
    }
    return {name: pa.schema([("run_id", text), *columns[name]]) for name in TABLES}
