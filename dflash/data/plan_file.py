"""A plan as one Arrow file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np

from dflash.batching.plan import LEDGER, BatchPlan, Layout
from dflash.data.atomic import atomic_writer
from dflash.errors import PlanError, UsageError

_FORMAT = b"dflash plan 1"

_ARRAYS = ("samples", "batch_offsets", "window_offsets", "ids")
_LEDGER = tuple(f"ledger_{name}" for name in LEDGER.names or ())


def save_plan(path: str | Path, plan: BatchPlan) -> None:
    """Write a plan: a table of one row, each array of the plan (ledger columns too) a list of int64.

    The schema's metadata holds the format, the layout and the digest. The file appears whole or not at all.
    Raises UsageError if it cannot be written.
    """
    pa = _pyarrow()
    columns = {name: getattr(plan, name) for name in _ARRAYS}
    columns |= {name: np.ascontiguousarray(plan.ledger[name.removeprefix("ledger_")]) for name in _LEDGER}
    schema = _schema().with_metadata(
        {"format": _FORMAT, "layout": plan.layout.encode(), "digest": plan.digest().encode()}
    )
    lists = [pa.LargeListArray.from_arrays([0, len(values)], pa.array(values)) for values in columns.values()]
    try:
        with atomic_writer(Path(path)) as file, pa.ipc.new_file(file, schema) as writer:
            writer.write_batch(pa.record_batch(lists, schema=schema))
    except OSError as error:
        raise UsageError(f"cannot write the plan {path}: {error.strerror or error}") from error


def load_plan(path: str | Path) -> BatchPlan:
    """Read a plan that `save_plan` wrote.

    Raises UsageError if the file cannot be read, is no plan, is cut short, or differs from its digest.
    """
    pa = _pyarrow()
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the plan {path}: {error.strerror or error}") from error
    try:
        return _plan(pa.ipc.open_file(data))
    except (pa.ArrowException, OSError, ValueError, PlanError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{path} is not a whole plan file ({reason}): save the plan anew") from error


def _plan(reader: Any) -> BatchPlan:
    facts = reader.schema.metadata or {}
    if facts.get(b"format") != _FORMAT or not reader.schema.equals(_schema()):
        raise ValueError(f"its format is not {_FORMAT.decode()!r}")
    if reader.num_record_batches != 1:
        raise ValueError(f"{reader.num_record_batches} plans instead of one")
    batch = reader.get_batch(0)
    batch.validate(full=True)
    arrays = {name: batch[name].flatten().to_numpy() for name in batch.schema.names}
    ledger = np.empty(len(arrays[_LEDGER[0]]), LEDGER)
    for name in _LEDGER:
        ledger[name.removeprefix("ledger_")] = arrays.pop(name)
    plan = BatchPlan(**arrays, layout=cast("Layout", facts.get(b"layout", b"").decode()), ledger=ledger)
    if plan.digest().encode() != facts.get(b"digest"):
        raise ValueError("its arrays do not give its digest")
    return plan


def _schema() -> Any:
    pa = _pyarrow()
    return pa.schema([(name, pa.large_list(pa.int64())) for name in (*_ARRAYS, *_LEDGER)])


def _pyarrow() -> Any:
    """Slow to import, so only where it is used."""
    import pyarrow

    return pyarrow
