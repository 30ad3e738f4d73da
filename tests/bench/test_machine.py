from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dflash.bench.machine import (
    Load,
    Machine,
    class_key,
    class_text,
    describe,
    parse_cpu_model,
    parse_cpu_quota,
    parse_steal,
    parse_torch_build,
    read_load,
)

STAT = """cpu  10132153 290696 3084719 46828483 16683 0 25195 175628 0 0
cpu0 1393280 32966 572056 13343292 6130 0 17875 23933 0 0
intr 8688370 0 0
"""


def test_steal_is_the_eighth_figure_of_all_cores() -> None:
    assert parse_steal(STAT, 100) == 1756.28
    assert parse_steal(STAT, 250) == 702.512


@pytest.mark.parametrize("stat", ["", "cpu  1 2 3 4\n", "cpu0 1 2 3 4 5 6 7 8 9 10\n"])
def test_steal_is_null_where_the_kernel_does_not_tell(stat: str) -> None:
    assert parse_steal(stat, 100) is None


def test_steal_between_two_readings() -> None:
    assert Load(12.5, 0.7).since(Load(10.0, 3.0)) == Load(2.5, 0.7)
    assert Load(10.0, 0.7).since(Load(10.0, 3.0)) == Load(0.0, 0.7)
    assert Load(12.5, 0.7).since(Load(None, 3.0)) == Load(None, 0.7)
    assert Load(None, None).since(Load(10.0, 3.0)) == Load(None, None)


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs /proc")
def test_a_real_reading_never_steals_more_than_there_was() -> None:
    start, began = read_load(), time.monotonic()
    sum(range(10**6))
    spent = read_load().since(start)
    elapsed = time.monotonic() - began
    assert spent.steal_seconds is not None
    assert 0 <= spent.steal_seconds <= (elapsed + 0.02) * (os.cpu_count() or 1)
    assert spent.load == pytest.approx(os.getloadavg()[0], abs=0.5)


def test_cpu_model() -> None:
    assert parse_cpu_model(
        "processor\t: 0\nmodel\t\t: 85\nmodel name\t: Some CPU @ 2.00GHz \nmodel name\t: x\n"
    ) == ("Some CPU @ 2.00GHz")
    assert parse_cpu_model("processor\t: 0\nBogoMIPS\t: 50.00\n") is None


@pytest.mark.parametrize(("text", "cores"), [("max 100000\n", None), ("250000 100000\n", 2.5), ("", None)])
def test_cpu_quota(text: str, cores: float | None) -> None:
    assert parse_cpu_quota(text) == cores


def test_two_descriptions_of_one_machine_are_equal_and_name_no_host() -> None:
    first, second = describe(), describe()
    assert first == second
    assert first.cpu and first.cores >= 1
    assert first.python == platform.python_version()
    host = platform.node()
    values = msgspec.to_builtins(first).values()
    assert not host or all(host != value for value in values)
    assert not {"host", "hostname", "load", "node", "uptime"} & msgspec.to_builtins(first).keys()


def test_versions_are_those_of_the_installed_distributions() -> None:
    import numpy as np

    versions = describe().versions
    assert versions["numpy"] == np.__version__
    assert versions.keys() == {"numpy", "torch", "transformers"}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs affinity")
def test_cores_are_those_that_this_process_may_use() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert describe().cores == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert describe().cores == len(allowed)


def test_thread_variables_set_empty_and_unset_are_three_things(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("MKL_NUM_THREADS", "")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    threads = describe().threads
    assert (threads["OMP_NUM_THREADS"], threads["MKL_NUM_THREADS"], threads["OPENBLAS_NUM_THREADS"]) == (
        "1",
        "",
        None,
    )


def test_a_description_does_not_import_torch() -> None:
    program = """
import sys
from dflash.bench.machine import describe
print(describe().gpus, "torch" in sys.modules)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[] False\n"


HERE = Machine(
    cpu="Some CPU @ 2.00GHz",
    cores=2,
    cpu_quota=None,
    memory_bytes=8 * 2**30,
    gpus=["Some GPU", "Some GPU"],
    platform="Linux x86_64",
    python="3.11.9",
    versions={"numpy": "2.4.6", "torch": "2.13.0", "transformers": "5.1.0"},
    threads={"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": None},
    builds={"cuda": "12.8", "blas": "mkl 2024.2", "hip": None},
)


def test_a_class_is_told_in_words_and_by_a_key_that_never_changes() -> None:
    assert class_text(HERE) == (
        "cpu=Some CPU @ 2.00GHz, cores=2, gpus=Some GPU + Some GPU, platform=Linux x86_64, python=3.11, "
        "torch=2.13.0, blas=mkl 2024.2, cuda=12.8, hip=-, MKL_NUM_THREADS=-, OMP_NUM_THREADS=1"
    )
    assert class_key(HERE) == hashlib.sha256(class_text(HERE).encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    "change",
    [
        {"memory_bytes": 9 * 2**30},
        {"memory_bytes": None},
        {"python": "3.11.13"},
        {"versions": HERE.versions | {"transformers": "5.2.0"}},
        {"threads": dict(reversed(HERE.threads.items()))},
        {"builds": dict(reversed(HERE.builds.items()))},
    ],
)
def test_what_changes_from_boot_to_boot_changes_no_class(change: dict[str, Any]) -> None:
    assert class_key(msgspec.structs.replace(HERE, **change)) == class_key(HERE)


@pytest.mark.parametrize(
    "change",
    [
        {"cpu": "Another CPU"},
        {"cores": 4},
        {"cpu_quota": 1.5},
        {"gpus": ["Some GPU"]},
        {"gpus": []},
        {"platform": "Linux aarch64"},
        {"python": "3.12.9"},
        {"versions": HERE.versions | {"torch": "2.14.0"}},
        {"builds": HERE.builds | {"blas": "open"}},
        {"threads": HERE.threads | {"MKL_NUM_THREADS": "1"}},
    ],
)
def test_what_decides_speed_changes_the_class(change: dict[str, Any]) -> None:
    assert class_key(msgspec.structs.replace(HERE, **change)) != class_key(HERE)


def test_this_machine_keeps_its_class_from_process_to_process() -> None:
    program = "from dflash.bench.machine import class_key, describe; print(class_key(describe()))"
    keys = set()
    for seed in ("0", "1"):
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        keys.add(done.stdout)
    assert len(keys) == 1


def test_a_class_names_no_host_and_no_frequency_that_is_measured() -> None:
    text = class_text(describe())
    assert platform.node() not in text
    measured = re.findall(r"cpu MHz\s*:\s*(\S+)", Path("/proc/cpuinfo").read_text())
    assert not any(frequency in text for frequency in measured)


TORCH_BUILD = """PyTorch built with:
  - GCC 13.3
  - Intel(R) oneAPI Math Kernel Library Version 2024.2-Product Build 20240605 for Intel(R) 64 architecture
  - CPU capability usage: AVX512
  - Build settings: BLAS_INFO=mkl, BUILD_TYPE=Release, CUDA_VERSION=12.8, LAPACK_INFO=mkl, USE_MKL=ON,
"""


def test_a_build_of_torch_is_its_blas_and_its_instructions() -> None:
    assert parse_torch_build(TORCH_BUILD) == {"blas": "mkl 2024.2-Product", "instructions": "AVX512"}
    assert parse_torch_build("  - Build settings: BLAS_INFO=open, \n") == {
        "blas": "open",
        "instructions": None,
    }
    assert parse_torch_build("") == {"blas": None, "instructions": None}


def test_where_torch_is_imported_its_build_is_described() -> None:
    import torch

    builds = describe().builds
    assert builds.keys() == {"cuda", "hip", "blas", "instructions"}
    assert builds["cuda"] == torch.version.cuda
    assert (builds["blas"] or "").startswith("mkl") == torch.backends.mkl.is_available()
    assert builds["instructions"] == torch.backends.cpu.get_cpu_capability()
