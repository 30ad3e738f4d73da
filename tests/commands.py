"""Both commands as a user starts them: the installed scripts, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


def command(name: str, *arguments: str) -> list[str]:
    """The script beside this interpreter, whatever the PATH."""
    return [str(Path(sys.executable).parent / name), *arguments]


def environment(changes: dict[str, str] | None = None) -> dict[str, str]:
    return {**os.environ, **(changes or {}), "COLUMNS": "200"}


def run_command(name: str, *arguments: str, cwd: Path, env: dict[str, str] | None = None) -> Result:
    done = subprocess.run(
        command(name, *arguments),
        cwd=cwd,
        env=environment(env),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)
