"""How many cores this process may use at once: the machine's, or less where it is bound or has a quota."""

from __future__ import annotations

import os
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """The cores that the scheduler may put this process on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_quota() -> float | None:
    """Cores' worth of time that control groups allow; None without a limit."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    quotas = [quota for line in lines for quota in _of_hierarchy(line)]
    return min(quotas, default=None)


def _of_hierarchy(line: str) -> list[float]:
    """A line is ``hierarchy:controllers:path``; the groups above a group limit it too."""
    _, controllers, path = line.split(":", 2)
    if "cpu" in controllers.split(","):
        root, files = _GROUPS / "cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
    elif controllers == "":
        root, files = _GROUPS, ["cpu.max"]
    else:
        return []
    group = root / path.lstrip("/")
    found = []
    for folder in (group, *group.parents):
        try:
            fields = " ".join((folder / file).read_text() for file in files).split()
        except OSError:
            fields = []
        if len(fields) == 2 and fields[0].isdigit():  # "max", and -1 in the older files, is no limit
            found.append(int(fields[0]) / int(fields[1]))
        if folder == root:
            break
    return found
