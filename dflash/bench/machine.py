"""What the machine is, and what else it did during a trial.

The description holds only what stays the same from boot to boot and names no host, so that two runs on one
machine, or on two of one class, describe it alike. What changes is a covariate of the trial.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import msgspec

_GIB = 2**30
_DISTRIBUTIONS = ("numpy", "torch", "transformers")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and the software that decides its speed.

    ``cores`` is what this process may use, ``cpu_quota`` the cores' worth of time that its control group
    grants (None: no limit). ``memory_bytes`` is rounded to whole GiB, because kernels reserve a little more
    or less each time. ``builds`` holds what torch was built with, None where it is built without.
    """

    cpu: str
    cores: int
    cpu_quota: float | None
    memory_bytes: int | None
    gpus: list[str]
    platform: str
    python: str
    versions: dict[str, str | None]
    threads: dict[str, str | None]
    builds: dict[str, str | None] = {}


def describe() -> Machine:
    """This machine, as this process sees it.

    GPUs are named only where torch has started CUDA already, that is in a trial that uses them: a process
    that started it for their names alone could fork no more trials. Builds are named where torch is imported.
    """
    return Machine(
        cpu=parse_cpu_model(_read("/proc/cpuinfo")) or platform.processor() or platform.machine(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        cpu_quota=parse_cpu_quota(_read("/sys/fs/cgroup/cpu.max")),
        memory_bytes=_memory_bytes(),
        gpus=_gpus(),
        platform=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        versions={name: _version(name) for name in _DISTRIBUTIONS},
        threads={name: os.environ.get(name) for name in _THREAD_VARIABLES},
        builds=_builds(),
    )


def class_text(machine: Machine) -> str:
    """What decides speed, in one line: machines of which it is equal are of one class.

    It holds no fact that differs between two machines of a kind or two boots of one, memory included.
    """
    quota = {} if machine.cpu_quota is None else {"quota": f"{machine.cpu_quota:g}"}
    versions = {"python": ".".join(machine.python.split(".")[:2]), "torch": machine.versions.get("torch")}
    facts: dict[str, str | None] = {
        "cpu": machine.cpu,
        "cores": str(machine.cores),
        **quota,
        "gpus": " + ".join(machine.gpus) or None,
        "platform": machine.platform,
        **versions,
        **dict(sorted(machine.builds.items())),
        **dict(sorted(machine.threads.items())),
    }
    return ", ".join(f"{name}={'-' if value is None else value}" for name, value in facts.items())


def class_key(machine: Machine) -> str:
    """Sixteen hexadecimal digits that stand for :func:`class_text`, in names and for comparison."""
    return hashlib.sha256(class_text(machine).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Load:
    """What else the machine did: CPU seconds that the hypervisor took, and the one-minute load average.

    Either is None where the system does not tell.
    """

    steal_seconds: float | None
    load: float | None

    def since(self, start: Load) -> Load:
        """The steal between ``start`` and this reading, with this reading's load average."""
        if self.steal_seconds is None or start.steal_seconds is None:
            return Load(None, self.load)
        return Load(self.steal_seconds - start.steal_seconds, self.load)


def read_load() -> Load:
    """A reading to subtract from a later one."""
    ticks = os.sysconf("SC_CLK_TCK")
    try:
        load = os.getloadavg()[0]
    except OSError:
        load = None
    return Load(parse_steal(_read("/proc/stat"), ticks), load)


def parse_steal(stat: str, ticks_per_second: int) -> float | None:
    """Stolen CPU seconds since boot, all cores together: the eighth figure of ``cpu`` in /proc/stat."""
    fields = stat.partition("\n")[0].split()
    if len(fields) < 9 or fields[0] != "cpu":
        return None
    return int(fields[8]) / ticks_per_second


def parse_cpu_model(cpuinfo: str) -> str | None:
    """The model name in /proc/cpuinfo; None on architectures that give none."""
    found = re.search(r"^model name\s*:\s*(.+?)\s*$", cpuinfo, re.MULTILINE)
    return found[1] if found else None


def parse_cpu_quota(cpu_max: str) -> float | None:
    """Cores' worth of time from a control group's cpu.max: ``QUOTA PERIOD`` in us, or ``max PERIOD``."""
    fields = cpu_max.split()
    if len(fields) != 2 or fields[0] == "max":
        return None
    return int(fields[0]) / int(fields[1])


def _memory_bytes() -> int | None:
    try:
        exact = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
    return round(exact / _GIB) * _GIB


def _gpus() -> list[str]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _builds() -> dict[str, str | None]:
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        **parse_torch_build(torch.__config__.show()),
    }


def parse_torch_build(text: str) -> dict[str, str | None]:
    """The BLAS library and the vector instructions that ``torch.__config__.show()`` tells of."""
    blas = re.search(r"BLAS_INFO=(\w+)", text)
    mkl = re.search(r"Math Kernel Library Version (\S+)", text)
    instructions = re.search(r"CPU capability usage: (\S+)", text)
    name = " ".join(found[1] for found in (blas, mkl) if found)
    return {"blas": name or None, "instructions": instructions[1] if instructions else None}


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
