"""What a prediction is held against: stored runs, by the one function of the store that reads them."""

from __future__ import annotations

import msgspec

from dflash.bench import store
from dflash.bench.results import Run
from dflash.config import Config
from dflash.errors import UsageError


def load_run(name: str) -> Run:
    """The run called `last`, or by the start of its name, or in a file; UsageError if there is none."""
    return store.load(store.find(name))[0]


def trainer_config(run: Run) -> Config:
    """The trainer's settings in a run; UsageError if this version does not know them."""
    try:
        return msgspec.convert(run.settings.trainer, Config)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"run {run.run_id}: its trainer's settings are another version's ({error})"
        ) from error
