"""Lengths from a file: all that a plan needs of the data."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dflash.batching.plan import LARGEST, IntArray
from dflash.errors import UsageError


def read_lengths(path: Path) -> IntArray:
    """int64[n], n > 0: the tokens of each sample, in the order of the file.

    .npy: one array of one dimension. .parquet: the column called length or lengths, or the only column of
    integers. .csv: the column called length or lengths, or the only one; a header may be left out.

    Raises UsageError for a missing, empty or foreign file, and for a row (counted from 0) that is not a
    whole number of at least 1.
    """
    readers: dict[str, Callable[[Path], npt.NDArray[Any]]] = {
        ".npy": _read_npy,
        ".parquet": _read_parquet,
        ".csv": _read_csv,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise UsageError(f"lengths {str(path)!r}: expected a file {', '.join(readers)}, or lognormal:...")
    try:
        return _whole_numbers(reader(path))
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file of lengths") from None
    except (OSError, ValueError, EOFError, csv.Error) as error:  # Arrow's errors are one of the first two
        reason = str(error).partition("\n")[0].rstrip(".")
        raise UsageError(f"{path}: cannot take lengths from it: {reason}") from None


def _read_npy(path: Path) -> npt.NDArray[Any]:
    array = np.load(path, allow_pickle=False)
    if not isinstance(array, np.ndarray) or array.ndim != 1:
        raise ValueError("expected one array of one dimension")
    return array


def _read_parquet(path: Path) -> npt.NDArray[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        schema = file.schema_arrow
        integers = [column for column, field in enumerate(schema) if pa.types.is_integer(field.type)]
        name = schema.names[_column(schema.names, integers, "column of integers")]
        # An empty cell makes floats of the whole column, and is NaN among them.
        array: npt.NDArray[Any] = file.read([name]).column(0).to_numpy()
        return array


def _read_csv(path: Path) -> npt.NDArray[np.float64]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = [row for row in csv.reader(file) if row]
    header = (
        rows.pop(0) if rows and not any(map(_is_number, rows[0])) else [""] * len(rows[0] if rows else [])
    )
    column = _column(header, range(len(header)), "column")
    for number, row in enumerate(rows):
        if len(row) != len(header) or not _is_number(row[column]):
            raise ValueError(f"row {number} is {','.join(row)!r}")
    return np.array([row[column] for row in rows], dtype=np.float64)  # exact far beyond any length


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _column(names: Sequence[str], candidates: Sequence[int], what: str) -> int:
    """The column called length or lengths, or the only candidate."""
    called = [column for column, name in enumerate(names) if name.strip().lower() in ("length", "lengths")]
    found = called or candidates
    if len(found) != 1:
        raise ValueError(f"expected one {what}, or one called length, among {', '.join(names) or 'none'}")
    return found[0]


def _whole_numbers(array: npt.NDArray[Any]) -> IntArray:
    if array.dtype.kind not in "iuf":
        raise ValueError(f"expected whole numbers, got {array.dtype}")
    if not len(array):
        raise ValueError("it is empty")
    wrong = np.flatnonzero(~((array >= 1) & (array <= LARGEST)) | (array != np.floor(array)))
    if len(wrong):
        more = f", and {len(wrong) - 1} more rows are no better" if len(wrong) > 1 else ""
        raise ValueError(
            f"row {wrong[0]} is {array[wrong[0]]}, expected a whole number from 1 to {LARGEST}{more}"
        )
    return array.astype(np.int64)
