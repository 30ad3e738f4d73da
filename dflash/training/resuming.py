"""Going on with a run: from which checkpoint, with which settings, and whether it is the same run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from dflash.config import Config
from dflash.data.store import TokenStore
from dflash.errors import UsageError
from dflash.models.identity import TargetIdentity
from dflash.training.checkpoint import FOLDER, Header, Origin, checkpoints, read_header, refuse_another_run
from dflash.training.plans import RunPlans
from dflash.training.run_folder import METRICS, SETTINGS, lines_of_metrics

_DECIDE_NOTHING = {
    # The store and the target are known by their content.
    "data": ("store", "target", "allow_untrained_target"),
    "training": ("evaluate_every", "checkpoint_every", "keep_checkpoints"),
}
_DECIDE_ROUNDING = ("attention", "gradient_checkpointing", "anchor_budget")
_MOST_AHEAD = 32
"""results on their way to the command: well more than the pipeline holds"""


@dataclass(frozen=True)
class Resumption:
    """Where a run goes on: after its checkpoint, or from its start where it was killed before the first."""

    folder: Path
    checkpoint: Path | None = None
    """None: there is none yet"""
    header: Header | None = None

    @property
    def windows(self) -> int:
        """Committed until there."""
        return 0 if self.header is None else self.header.windows

    @property
    def results(self) -> int:
        """Of windows and evaluations, given until there."""
        return 0 if self.header is None else self.header.results


def find(where: Path) -> Resumption:
    """The last checkpoint of a run's folder, or the one at ``where``.

    In a folder it is the last one with all results before it in metrics.jsonl. The worker that writes
    checkpoints is ahead of the command that writes results, and both may be killed at any moment.

    Raises:
        UsageError: ``where`` is neither; the checkpoint cannot be read, or has later ones beside it.
    """
    if where.is_file():
        return _at(where)
    if not (where / SETTINGS).is_file():
        raise UsageError(f"--resume {where}: there is no run and no checkpoint")
    written = lines_of_metrics(where)
    for path in reversed(checkpoints(where).values()):
        header = read_header(path)
        if header.results <= written:
            return Resumption(where, path, header)
        if header.results > written + _MOST_AHEAD:
            raise UsageError(
                f"{where / METRICS} has {written} lines of {header.results} that were written before {path}: "
                f"--resume {path} goes on without them"
            )
    return Resumption(where)


def find_or_begin(folder: Path) -> Resumption:
    """:func:`find`, where there is a run, else its beginning. For what is started again after every fall."""
    return find(folder) if (folder / SETTINGS).is_file() else Resumption(folder)


def _at(path: Path) -> Resumption:
    folder = path.absolute().parent.parent
    found = checkpoints(folder)
    windows = next((windows for windows, one in found.items() if one.name == path.name), None)
    if windows is None or not (folder / SETTINGS).is_file():
        raise UsageError(f"--resume {path}: that is no checkpoint in the {FOLDER} of a run")
    if windows < max(found):
        raise UsageError(f"--resume {path}: there are later ones beside it; move them away to go back to it")
    return Resumption(folder, path, read_header(path))


def origin(config: Config, store: TokenStore, plans: RunPlans, target: TargetIdentity) -> Origin:
    """What a run's results follow from. Accumulation counts only together with the number of drafters."""
    settings: dict[str, dict[str, Any]] = msgspec.to_builtins(config)
    drafters = settings.pop("pipeline")["drafters"]
    rounding = {f"drafter.{name}": settings["drafter"].pop(name) for name in _DECIDE_ROUNDING}
    for section, names in _DECIDE_NOTHING.items():
        for name in names:
            del settings[section][name]
    settings["batching"]["accumulation x drafters"] = settings["batching"].pop("accumulation") * drafters
    return Origin(
        fingerprint=store.fingerprint,
        plan_digests=plans.digests,
        target_settings=target.config_hash,
        target_weights=target.weight_hash,
        settings=settings,
        rounding=rounding | {"pipeline.drafters": drafters, "torch": str(torch.__version__)},
    )


def check(resumption: Resumption, wanted: Origin) -> str:
    """That a checkpoint is of this very run; returns a line on what can be expected of going on.

    Raises:
        UsageError: it is another run's; names the first difference.
    """
    header, checkpoint = resumption.header, resumption.checkpoint
    if header is None or checkpoint is None:
        return f"no checkpoint in {resumption.folder} yet: from the start"
    refuse_another_run(header.origin, wanted, checkpoint)
    line = f"going on after window {header.windows} from {checkpoint}"
    before = header.origin.rounding
    changes = [
        f"{name}={now}, not {before.get(name)}"
        for name, now in wanted.rounding.items()
        if now != before.get(name)
    ]
    if not changes:
        return line
    return (
        f"{line} with {', '.join(changes)}: same samples, anchors and weights of windows as in an unbroken "
        "run, but sums are rounded otherwise"
    )
