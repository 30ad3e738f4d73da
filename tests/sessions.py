"""The processes of a session, which must all be gone in the end."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path


def members(session: int) -> list[int]:
    """The processes of a session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _parent, _group, its = path.read_text().rpartition(")")[2].split()[:4]
            if int(its) == session and state != "Z":
                found.append(int(path.parent.name))
    return found


def nobody_is_left(session: int) -> bool:
    deadline = time.monotonic() + 10
    while members(session) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not members(session)
