"""Runs on disk: one Parquet file per run, a row per trial, the run's JSON in the file's metadata.

Any Parquet reader sees the trials as a flat table whose columns are the metrics by name.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dflash.bench.metrics import METRICS
from dflash.bench.results import SCHEMA_VERSION, Run, Trial
from dflash.errors import DflashError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

DIRECTORY = Path(".dflash-bench")

_VERSION_KEY = b"dflash.schema_version"
_RUN_KEY = b"dflash.run"
_METRICS_KEY = b"dflash.metrics"


def new_run_id() -> str:
    """A new ULID: 48 bits of milliseconds, 80 random bits, in text that sorts by time.

    Built from its bytes, because the library's own generator counts upwards within a millisecond, and two
    children of one fork would count alike.
    """
    from ulid import ULID

    return str(ULID.from_bytes((time.time_ns() // 1_000_000).to_bytes(6, "big") + os.urandom(10)))


def open_directory(directory: Path = DIRECTORY) -> Path:
    """``directory``, made if need be; UsageError if it cannot hold files: ask before anything is measured."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{directory}: cannot store runs there ({error.strerror}); name another directory"
        ) from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise UsageError(f"{directory}: cannot store runs there (not writable); name another directory")
    return directory


def save(run: Run, trials: Sequence[Trial], directory: Path = DIRECTORY) -> Path:
    """Write ``<run_id>.parquet`` and return its path: whole and durable, or not there at all.

    Any number of processes may write to one directory at once.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist([_row(trial) for trial in trials], schema=_schema(run))
    path = open_directory(directory) / f"{run.run_id}.parquet"
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            pq.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise DflashError(f"{path}: cannot write the run ({error.strerror})") from error
    finally:
        temporary.unlink(missing_ok=True)
    return path


def load(path: Path) -> tuple[Run, list[Trial]]:
    """The run in ``path`` and its trials; UsageError if it is not a whole run that this version can read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            table = file.read()
    except OSError as error:
        raise UsageError(f"{path}: cannot read it ({error.strerror or 'not a Parquet file'})") from None
    except pa.ArrowException:
        raise UsageError(
            f"{path}: not a Parquet file, or a damaged one; give a file that dflash-bench wrote"
        ) from None
    metadata = table.schema.metadata or {}
    if not metadata.keys() >= {_VERSION_KEY, _RUN_KEY, _METRICS_KEY}:
        raise UsageError(f"{path}: a Parquet file, but not a run; give a file that dflash-bench wrote")
    version = int(metadata[_VERSION_KEY])
    if version > SCHEMA_VERSION:
        raise UsageError(
            f"{path}: schema version {version}, this dflash reads up to {SCHEMA_VERSION}; install a newer one"
        )
    try:
        run = msgspec.json.decode(metadata[_RUN_KEY], type=Run)
        names = [str(definition["name"]) for definition in msgspec.json.decode(metadata[_METRICS_KEY])]
        return run, [_trial(row, names) for row in table.to_pylist()]
    except (msgspec.MsgspecError, DflashError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: the run in it does not make sense ({error})") from None


def _schema(run: Run) -> pa.Schema:
    """Explicit, so that a column that is null in every row keeps its type."""
    import pyarrow as pa

    shares = pa.map_(pa.string(), pa.map_(pa.string(), pa.float64()))
    columns: list[tuple[str, Any]] = [
        ("pair", pa.int64()),
        ("slot", pa.int64()),
        ("arm", pa.string()),
        ("seed", pa.int64()),
        ("status", pa.string()),
        ("error", pa.string()),
        *((name, pa.float64()) for name in METRICS),
        ("losses", pa.list_(pa.float64())),
        ("plan_digest", pa.string()),
        ("stages", shares),
        ("bottleneck", pa.string()),
        ("steal_seconds", pa.float64()),
        ("load", pa.float64()),
    ]
    metadata: dict[bytes | str, bytes | str] = {
        _VERSION_KEY: str(run.schema_version).encode(),
        _RUN_KEY: run.to_json(),
        _METRICS_KEY: msgspec.json.encode(list(METRICS.values())),
    }
    return pa.schema(columns, metadata=metadata)


def _row(trial: Trial) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.structs.asdict(trial)
    row |= dict.fromkeys(METRICS) | row.pop("metrics")
    return row


def _trial(row: dict[str, Any], names: Sequence[str]) -> Trial:
    """The trial in a row of any version: columns that a later version added are passed over."""
    known = {key: row[key] for key in Trial.__struct_fields__ if key in row}
    stages = {stage: dict(shares) for stage, shares in row["stages"]}
    metrics = {name: row[name] for name in names if name in METRICS}
    return msgspec.convert(known | {"stages": stages, "metrics": metrics}, type=Trial)
