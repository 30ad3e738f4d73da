"""Memory that is left, from files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash import memory

MACHINE = {"/proc/meminfo": "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    600 kB\n"}


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({}, None),
        (MACHINE, 600 * 1024),
        # A group of the second version that allows less than the machine has.
        (
            MACHINE
            | {
                "/proc/self/cgroup": "0::/job/step\n",
                "/sys/fs/cgroup/job/step/memory.max": "max\n",
                "/sys/fs/cgroup/job/step/memory.current": "5000\n",
                "/sys/fs/cgroup/job/memory.max": "300000\n",
                "/sys/fs/cgroup/job/memory.current": "100000\n",
            },
            200_000,
        ),
        # Of the first version, which has a tree for memory alone; another tree says nothing about it.
        (
            MACHINE
            | {
                "/proc/self/cgroup": "9:cpu:/a\n4:memory:/a\n",
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes": "1000\n",
                "/sys/fs/cgroup/memory/a/memory.usage_in_bytes": "400\n",
                "/sys/fs/cgroup/a/memory.max": "1\n",
                "/sys/fs/cgroup/a/memory.current": "1\n",
            },
            600,
        ),
        # More is used than is allowed: a limit was lowered.
        (
            {
                "/proc/self/cgroup": "0::/\n",
                "/sys/fs/cgroup/memory.max": "100\n",
                "/sys/fs/cgroup/memory.current": "300\n",
            },
            0,
        ),
    ],
)
def test_the_least_that_anyone_allows_counts(monkeypatch, files, left):
    monkeypatch.setattr(memory, "_read", lambda path: files.get(str(path), ""))
    assert memory.available_bytes() == left


def test_this_machine_tells_what_it_has():
    (line,) = [line for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line]
    left = memory.available_bytes()
    assert left is not None
    assert 0 < left <= int(line.split()[1]) * 1024
