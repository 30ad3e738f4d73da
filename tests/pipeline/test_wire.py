"""What goes between processes, and what must not."""

from __future__ import annotations

import re
from pathlib import Path

import dflash

_FORBIDDEN = {
    "tensors from one to another, in an order that nobody guarantees": r"distributed\.i?(send|recv)\b",
    "queues that hang when a process dies": r"\b(Joinable|Simple)?Queue\(|\bManager\(",
    "shared memory with a name, which is left behind": r"\bshared_memory\b|\bshare_memory_\b|/dev/shm",
}
_QUEUES_OF_THREADS = {"data/workers.py", "pipeline/engines/thread.py", "pipeline/watchdog.py"}


def test_nothing_travels_in_ways_that_hang_or_leave_something_behind():
    package = Path(dflash.__file__).parent
    found = [
        (str(path.relative_to(package)), why)
        for path in sorted(package.rglob("*.py"))
        for why, pattern in _FORBIDDEN.items()
        if re.search(pattern, path.read_text())
    ]
    queues = "queues that hang when a process dies"
    assert [one for one in found if not (one[0] in _QUEUES_OF_THREADS and one[1] == queues)] == []
    assert all("from queue import" in (package / name).read_text() for name in _QUEUES_OF_THREADS)
