"""What a run was: written beside everything that comes out of it."""

from __future__ import annotations

import platform
import sys
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import msgspec

import dflash
from dflash.config import Config
from dflash.training.placement import Placement

_LIBRARIES = ("torch", "transformers", "numpy", "safetensors", "pyarrow")


def manifest(
    config: Config, placement: Placement, before: list[dict[str, Any]], after: int, **facts: Any
) -> dict[str, Any]:
    """Settings; the facts that the caller knows, such as digests; and when, where and how it was started.

    Args:
        before: the earlier starts of a run that goes on.
        after: windows trained before this start.
    """
    start = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "after_windows": after,
        "command_line": sys.argv,
        "dflash": dflash.__version__,
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in _LIBRARIES},
        "engine": placement.engine,
        "workers": {"targets": placement.targets, "drafters": placement.drafters},
    }
    return {"settings": msgspec.to_builtins(config), **facts, "starts": [*before, start]}
