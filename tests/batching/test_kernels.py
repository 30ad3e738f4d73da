"""Where the machine code is kept, in processes of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dflash

PROGRAM = """
import numpy as np
from dflash.batching import kernels
assert kernels.__file__.startswith({package!r}), kernels.__file__
print(kernels._within(np.array([3, 8, 5]), 11))  # the quickest to compile
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package that nothing has been compiled for."""
    source = Path(dflash.__file__).parent
    copy = tmp_path / "installed" / "dflash"
    shutil.copytree(source / "batching", copy / "batching", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("__init__.py", "errors.py"):
        shutil.copy(source / name, copy)
    return copy


def start(package: Path, cache: Path) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"PYTHONPATH": str(package.parent), "XDG_CACHE_HOME": str(cache), "HOME": str(cache)}
    command = [sys.executable, "-B", "-c", PROGRAM.format(package=str(package))]
    return subprocess.Popen(command, env=environment, cwd=package, stdout=subprocess.PIPE, text=True)


def run(package: Path, cache: Path) -> str:
    return start(package, cache).communicate()[0]


def compiled(folder: Path) -> list[Path]:
    return list(folder.rglob("kernels._within-*.nbc"))


def test_two_processes_may_compile_at_once(package: Path, tmp_path: Path) -> None:
    both = [start(package, tmp_path / "cache") for _ in range(2)]
    assert [process.communicate()[0] for process in both] == ["2\n"] * 2
    assert compiled(package)
    assert run(package, tmp_path / "cache") == "2\n"


def test_a_package_that_cannot_be_written_to_uses_the_user_s_cache(package: Path, tmp_path: Path) -> None:
    (package / "batching" / "__pycache__").write_text("in the way, even of root")
    assert run(package, tmp_path / "cache") == "2\n"
    assert not compiled(package)
    assert compiled(tmp_path / "cache")


def test_without_any_cache_it_is_compiled_every_time(package: Path) -> None:
    (package / "batching" / "__pycache__").write_text("in the way, even of root")
    assert run(package, Path("/dev/null/cache")) == "2\n"
