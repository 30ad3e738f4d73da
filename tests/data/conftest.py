"""The library's functions and the sample, read and prepared once for all tests here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from dflash.data.corpus import SourceFunction, library_functions
from dflash.data.sample import sample_store_path
from dflash.data.store import TokenStore

PREPARE = "from dflash.data.sample import prepare_sample; print(prepare_sample(print))"


@pytest.fixture(scope="session")
def library() -> Sequence[SourceFunction]:
    return tuple(library_functions())


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """What two processes with different hash seeds print; the path comes last.

    Each has its own cache: the first one's does not exist yet, the second one's holds a damaged store.
    """
    caches = [tmp_path_factory.mktemp("cache") / "new", tmp_path_factory.mktemp("cache")]
    (caches[1] / sample_store_path().name).write_bytes(b"ARROW1\0\0 and no more")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PREPARE],
            env={**os.environ, "DFLASH_CACHE": str(cache), "PYTHONHASHSEED": str(seed)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed, cache in enumerate(caches, start=1)
    ]
    outputs = [process.communicate()[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    return outputs


@pytest.fixture(scope="session")
def sample_path(prepared: list[list[str]]) -> Path:
    return Path(prepared[0][-1])


@pytest.fixture(scope="session")
def sample_store(sample_path: Path) -> TokenStore:
    return TokenStore.open(sample_path)
