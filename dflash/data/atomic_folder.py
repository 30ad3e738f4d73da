"""Folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from dflash.errors import UsageError


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Give a hidden folder beside ``path`` that takes its name when the block ends without an exception.

    Whoever fills it holds a lock on it, so a hidden folder without a lock is known to be left by a process
    that was killed: those are removed first.

    Raises:
        UsageError: there is something at ``path`` already (an empty folder is nothing), or no folder can be
            made there.
    """
    _refuse_taken(path)
    path = path.resolve()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        draft.mkdir()
        lock = os.open(draft, os.O_RDONLY)
    except OSError as error:
        raise UsageError(f"cannot make the folder {path}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield draft
        for file in draft.iterdir():
            _sync(file)
        os.fsync(lock)
        try:
            os.rename(draft, path)
        except OSError:  # someone else has put something there meanwhile
            _refuse_taken(path)
            raise
        _sync(path.parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def _refuse_taken(path: Path) -> None:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{path} exists already and is left as it is: give another folder")


def _remove_leftovers(path: Path) -> None:
    for leftover in path.parent.glob(f".{path.name}.*.tmp"):
        with contextlib.suppress(OSError):
            lock = os.open(leftover, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(leftover)
            finally:
                os.close(lock)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
