"""How much memory is left to this process: the machine's, or less where a control group allows less. And how
it is held."""

from __future__ import annotations

import ctypes
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_LARGEST_KEPT = 2**25  # the most that glibc takes
_KEPT = 2**30


def keep_freed_memory() -> None:
    """Have glibc keep what tensors give back, up to a gigabyte an arena, for the tensors that follow.

    Micro-batches differ in shape, and each would otherwise take its pages anew from the kernel: two thirds of
    the page faults of a trial, and a twentieth of its time. Does nothing where the C library is another.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, _LARGEST_KEPT)
        set_option(_M_TRIM_THRESHOLD, _KEPT)


def available_bytes() -> int | None:
    """Bytes that can be taken before the system or a control group ends a process; None if unknown."""
    found = [
        left for left in (_of_machine(), *_of_groups(_read(Path("/proc/self/cgroup")))) if left is not None
    ]
    return min(found, default=None)


def _of_machine() -> int | None:
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _of_groups(membership: str) -> list[int | None]:
    """What this process's groups and those above leave; a line is ``hierarchy:controllers:path``."""
    left = []
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            root, limit, used = _GROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        elif controllers == "":
            root, limit, used = _GROUPS, "memory.max", "memory.current"
        else:
            continue
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            left.append(_difference(_read(folder / limit), _read(folder / used)))
            if folder == root:
                break
    return left


def _difference(limit: str, used: str) -> int | None:
    if not (limit.strip().isdigit() and used.strip().isdigit()):
        return None
    return max(0, int(limit) - int(used))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
