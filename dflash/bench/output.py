"""Where output goes: a file, standard output, the summary of a job."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dflash.errors import UsageError


def github_summary_path() -> Path:
    """The file that GitHub shows as the summary of a job; UsageError outside of one."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        raise UsageError("--github-summary: GITHUB_STEP_SUMMARY is not set, so this is no job of GitHub")
    return Path(path)


def append(path: Path, text: str, otherwise: str = "") -> None:
    """Add to a file; UsageError, ending in `otherwise`, if it cannot be."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}{otherwise}") from error


def write(path: Path, content: bytes, otherwise: str = "") -> None:
    """Write a file, or standard output if it is `-`; UsageError, ending in `otherwise`, if it cannot be."""
    if path == Path("-"):
        sys.stdout.buffer.write(content)
        return
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}{otherwise}") from error
