"""Which engine runs a topology, and on which device each of its workers is."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dflash.config import PipelineSettings
from dflash.errors import UsageError


@dataclass(frozen=True)
class Placement:
    """What was chosen, and why in words."""

    engine: str
    targets: tuple[str, ...]
    """device of each target"""
    drafters: tuple[str, ...]
    reason: str


def place(settings: PipelineSettings) -> Placement:
    """Choose engine and devices.

    Raises:
        UsageError: a device that does not exist or cannot be read.
    """
    gpus = torch.cuda.device_count()
    workers = settings.targets + settings.drafters
    if settings.devices == "auto":
        devices = [f"cuda:{number}" for number in range(gpus)] or ["cpu"]
        found = f"{gpus} GPUs are visible" if gpus else "no GPU is visible"
    else:
        devices = [_known(name.strip(), gpus) for name in settings.devices.split(",")]
        found = f"pipeline.devices asks for {', '.join(devices)}"
    each = [devices[number % len(devices)] for number in range(workers)]
    engine = settings.engine
    if engine == "auto":
        engine = "process" if any(name.startswith("cuda") for name in each) else "thread"
    shared = "" if len(devices) >= workers else f"; {workers} workers share {len(devices)} in turn"
    return Placement(
        engine=engine,
        targets=tuple(each[: settings.targets]),
        drafters=tuple(each[settings.targets :]),
        reason=f"{found}{shared}",
    )


def _known(name: str, gpus: int) -> str:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"pipeline.devices: {name!r} is no device; write cpu or cuda:0,cuda:1") from error
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise UsageError(f"pipeline.devices: there is no {name}, {gpus} GPUs are visible")
    return str(device)
