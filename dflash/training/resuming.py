"""Going on with a run: from which checkpoint, with which settings, and whether it is the same run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dflash.config import Config
from dflash.errors import UsageError
from dflash.training.checkpoint import Header, Origin, checkpoints, read_header, refuse_another_run

_DECIDE_NOTHING = {
    # The store and the target are known by their content.
    "data": ("store", "target", "allow_untrained_target"),
    "drafter": ("attention", "gradient_checkpointing", "anchor_budget"),
    "training": ("checkpoint_every", "keep_checkpoints"),
}


@dataclass(frozen=True)
class Resumption:
    """Where a run goes on."""

    folder: Path
    checkpoint: Path
    header: Header


def find(where: Path) -> Resumption | None:
    """The last checkpoint of a run's folder, or the one at ``where``; None for a folder without any.

    Raises:
        UsageError: ``where`` is neither.
    """
    if where.is_dir():
        found = checkpoints(where)
        return Resumption(where, found[-1], read_header(found[-1])) if found else None
    if not where.is_file():
        raise UsageError(f"--resume {where}: there is no run and no checkpoint")
    return Resumption(where.parent.parent, where, read_header(where))


def origin(config: Config, fingerprint: str, plan_digests: tuple[str, ...], target: str) -> Origin:
    """What a run's results follow from. Accumulation counts only together with the number of drafters."""
    settings: dict[str, dict[str, Any]] = msgspec.to_builtins(config)
    drafters = settings.pop("pipeline")["drafters"]
    for section, names in _DECIDE_NOTHING.items():
        for name in names:
            del settings[section][name]
    settings["batching"]["accumulation x drafters"] = settings["batching"].pop("accumulation") * drafters
    return Origin(fingerprint=fingerprint, plan_digests=plan_digests, target=target, settings=settings)


def check(resumption: Resumption, wanted: Origin, drafters: int) -> str:
    """That a checkpoint is of this very run; returns a line on what can be expected of going on.

    Raises:
        UsageError: it is another run's; names the first difference.
    """
    header = resumption.header
    refuse_another_run(header.origin, wanted, resumption.checkpoint)
    line = f"going on after window {header.windows} from {resumption.checkpoint}"
    if header.drafters == drafters:
        return line
    return (
        f"{line}, with {drafters} drafters instead of {header.drafters}: same samples, anchors and weights "
        "of windows, but sums are rounded otherwise"
    )
