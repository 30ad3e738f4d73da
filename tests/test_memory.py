"""Memory that is left, from files as the kernel writes them."""

from __future__ import annotations

import platform
import subprocess
import sys
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


FAULTS = """
import resource
from dflash.memory import keep_freed_memory

if {keep}:
    keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for number in range(60):
    content = b"x" * ((8 + number % 12) << 20)
    del content
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has ways of its own")
def test_what_is_freed_is_used_again():
    def faults(keep):
        code = FAULTS.format(keep=keep)
        return int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)

    assert faults(True) < faults(False) / 3
