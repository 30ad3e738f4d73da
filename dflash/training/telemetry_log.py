"""The file of `dflash train --telemetry`: a line of JSON per interval, the whole run in the last one."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Self

from dflash.errors import UsageError
from dflash.training.events import Event

KEPT = ("run_start", "telemetry", "run_end")
"""Types of events that have a line. A file that several runs have written has a ``run_start`` for each."""


class TelemetryLog:
    """Appends, so that a run that goes on goes on here too; each line is on its way to the disk at once.

    A context manager that closes the file. Raises UsageError if it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        try:
            # Without a buffer: what a full disk has refused is not tried again on closing.
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise UsageError(f"cannot write telemetry to {path}: {error.strerror}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def tell(self, event: Event) -> None:
        """Write an event that has a line. Raises OSError."""
        if event["type"] in KEPT:
            self._file.write(json.dumps(event, allow_nan=False).encode() + b"\n")
