"""What a prediction is held against: stored runs, by the one function of the store that reads them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dflash.bench import store
from dflash.bench.results import Run
from dflash.config import Config
from dflash.errors import UsageError

LAST = "last"


def load_run(name: str) -> Run:
    """The run called `last`, or in a file; UsageError if there is none."""
    if name != LAST:
        return store.load(Path(name))[0]
    stored = sorted(store.DIRECTORY.glob("*.parquet"))
    if not stored:
        raise UsageError(f"{store.DIRECTORY}: no run is stored there; dflash-bench --strategy ... stores one")
    return store.load(stored[-1])[0]


def trainer_config(run: Run) -> Config:
    """The trainer's settings in a run; UsageError if this version does not know them."""
    try:
        return msgspec.convert(run.settings.trainer, Config)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"run {run.run_id}: its trainer's settings are another version's ({error})"
        ) from error
