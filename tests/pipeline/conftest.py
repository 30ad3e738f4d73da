from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from dflash.pipeline import ENGINES


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """Every engine keeps the same promises."""
    name: str = request.param
    return name


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Whatever a test does, its pipelines end with it."""
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before
