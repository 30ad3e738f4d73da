"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def atomic_writer(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside ``path`` that takes its place when the block ends without an exception.

    The bytes and the name are on disk (fsync) before this returns. Among concurrent writers the last one to
    finish wins; a reader sees one whole file. Each writer holds a lock on its temporary, so that a temporary
    without a lock is known to be a dead writer's, whatever became of its process id: those are removed first.
    """
    remove_leftovers(path.parent, path.name)
    temporary, file = _open_locked(path)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)  # still locked: nobody may take it for a leftover
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _open_locked(path: Path) -> tuple[Path, BinaryIO]:
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        file = open(temporary, "xb")  # noqa: SIM115  (the caller closes it)
        fcntl.flock(file, fcntl.LOCK_EX)
        if temporary.exists():
            return temporary, file
        file.close()  # another writer's clean-up came between creation and lock


def remove_leftovers(folder: Path, name: str = "*") -> None:
    """Remove the temporaries of dead writers of ``folder / name``; by default of every file there."""
    for leftover in folder.glob(f".{name}.*.tmp"):
        with contextlib.suppress(FileNotFoundError, BlockingIOError), open(leftover, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            leftover.unlink()


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
