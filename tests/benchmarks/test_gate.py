"""The project's own gate: benchmarks/gate."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import dflash
from dflash.batching.lengths import parse_lengths
from dflash.bench import baseline

GATE = Path(__file__).parents[2] / "benchmarks" / "gate"


def test_the_lengths_are_the_reference_distribution():
    lengths = np.load(GATE / "lengths.npy")
    drawn = parse_lengths("lognormal:n=20000")
    assert lengths.shape == drawn.shape
    # Another machine's exponential may differ in its last bit, which moves a length by one at most.
    assert np.abs(lengths - drawn).max() <= 1


def test_every_builtin_strategy_is_gated_and_in_the_baseline():
    gated = tomllib.loads((GATE / "gate.toml").read_text())["bench"]["plan"]["strategy"]
    project = tomllib.loads((GATE.parents[1] / "pyproject.toml").read_text())
    modules = project["project"]["entry-points"]["dflash"]
    builtin = sorted(
        name
        for name, module in modules.items()
        if hasattr(importlib.import_module(module), "dflash_strategies")
    )
    assert gated == builtin == sorted(baseline.read(GATE / "baseline.json").strategies)


@pytest.mark.skipif(
    not Path(dflash.__file__).is_relative_to(GATE.parents[1]), reason="needs the code of this repository"
)
def test_the_exact_part_holds_without_a_clock():
    done = subprocess.run(
        [sys.executable, str(GATE / "run.py"), "--exact"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "42 of 42 hold" in done.stdout
