"""Runs on disk: one Parquet file per run and table, named by a ULID, so that names sort by time.

    .dflash-bench/runs/<ULID>.parquet           a row: the run, its JSON among it
    .dflash-bench/trials/<ULID>.parquet         a row per trial, the metrics as columns
    .dflash-bench/windows/<ULID>.parquet        a row per measured window
    .dflash-bench/comparisons/<ULID>.parquet    a row per comparison

Files are written under a temporary name and renamed, and none is ever changed, so any number of processes
may write to one directory. Runs of schema version 1, one file each beside these folders, still load.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dflash.bench.results import SCHEMA_VERSION, Run, Trial
from dflash.bench.store_tables import TABLES, VERSION_KEY, tables, trial_of, trials_of
from dflash.errors import DflashError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

DIRECTORY = Path(".dflash-bench")
LAST = "last"

_OLD_RUN_KEY = b"dflash.run"  # where schema version 1 kept the run's JSON: the metadata of its trials


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
        for folder in (directory, *(directory / table for table in TABLES)):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{directory}: cannot store runs there ({error.strerror}); name another directory"
        ) from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise UsageError(f"{directory}: cannot store runs there (not writable); name another directory")
    return directory


def save(run: Run, trials: Sequence[Trial], directory: Path = DIRECTORY) -> Path:
    """Write every table of ``run``; the path of its row of `runs`, which comes last: whole, or not there."""
    open_directory(directory)
    for name, table in tables(run, trials).items():
        _write(table, directory / name / f"{run.run_id}.parquet")
    return directory / "runs" / f"{run.run_id}.parquet"


def paths(directory: Path = DIRECTORY) -> list[Path]:
    """The stored runs, oldest first."""
    found = [*directory.glob("*.parquet"), *(directory / "runs").glob("*.parquet")]
    return sorted((path for path in found if not path.name.startswith(".")), key=lambda path: path.stem)


def find(name: str, directory: Path = DIRECTORY) -> Path:
    """The stored run that ``name`` means: `last`, the start of one run's name, or a path.

    Raises UsageError if there is none, or more than one.
    """
    if name.endswith(".parquet"):
        return Path(name)
    stored = paths(directory)
    if not stored:
        raise UsageError(f"{directory}: no run is stored there; dflash-bench --strategy ... stores one")
    if name == LAST:
        return stored[-1]
    found = [path for path in stored if path.stem.startswith(name.upper())]
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(
            f"no run {name!r} in {directory}; the last is {stored[-1].stem}, see dflash-bench show --list"
        )
    raise UsageError(f"{name!r} is the start of {len(found)} runs: {', '.join(p.stem for p in found[:4])}")


def load(path: Path) -> tuple[Run, list[Trial]]:
    """The run in ``path`` and its trials; UsageError if it is not a whole run that this version can read."""
    table = _read(path)
    metadata = table.schema.metadata or {}
    old = _OLD_RUN_KEY in metadata
    if VERSION_KEY not in metadata or not (old or "document" in table.column_names):
        raise UsageError(f"{path}: a Parquet file, but not a run; give a file that dflash-bench wrote")
    version = int(metadata[VERSION_KEY])
    if version > SCHEMA_VERSION:
        raise UsageError(
            f"{path}: schema version {version}, this dflash reads up to {SCHEMA_VERSION}; install a newer one"
        )
    try:
        if old:
            run = msgspec.json.decode(metadata[_OLD_RUN_KEY], type=Run)
            return run, [trial_of(row) for row in table.to_pylist()]
        run = msgspec.json.decode(table.column("document")[0].as_py(), type=Run)
        trials, windows = (
            _read(path.parent.parent / name / path.name).to_pylist() for name in ("trials", "windows")
        )
        return run, trials_of(trials, windows)
    except (msgspec.MsgspecError, DflashError, KeyError, TypeError, IndexError) as error:
        raise UsageError(f"{path}: the run in it does not make sense ({error})") from None


def rows(path: Path, table: str) -> list[dict[str, Any]]:
    """The rows of one table of a stored run of any version, in this version's columns."""
    run, trials = load(path)
    found: list[dict[str, Any]] = tables(run, trials)[table].to_pylist()
    return found


def _write(table: pa.Table, path: Path) -> None:
    import pyarrow.parquet as pq

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


def _read(path: Path) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"{path}: cannot read it ({error.strerror or 'not a Parquet file'})") from None
    except pa.ArrowException:
        raise UsageError(
            f"{path}: not a Parquet file, or a damaged one; give a file that dflash-bench wrote"
        ) from None
