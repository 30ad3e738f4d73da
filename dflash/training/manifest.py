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


def manifest(config: Config, placement: Placement, **facts: Any) -> dict[str, Any]:
    """Settings, versions, command line, workers; and the facts that the caller knows, such as digests."""
    return {
        "dflash": dflash.__version__,
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in _LIBRARIES},
        "command_line": sys.argv,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "engine": placement.engine,
        "workers": {"targets": placement.targets, "drafters": placement.drafters},
        "settings": msgspec.to_builtins(config),
        **facts,
    }
