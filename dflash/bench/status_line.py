"""A line on a terminal that says what is under way, and nothing in a pipe. On stderr."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console


class StatusLine:
    """A context manager; who derives from it says what is on the line, and what stays above it."""

    def __init__(self, text: str) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._status = self._console.status(text)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._status.stop()
