from __future__ import annotations

import os

import pytest
from commands import Result, run_command

from dflash.config import dump_config

PLUGIN = '''
from dataclasses import dataclass
from dflash.hookspecs import StrategySpec, hookimpl

@dataclass(frozen=True)
class {cls}:
    """{name}"""
    fancy: int = 3

    def plan(self, lengths, request):
        import numpy as np
        from dflash.batching import packing, windows
        {body}

@hookimpl
def dflash_strategies():
    return [StrategySpec("{name}", "a strategy from elsewhere", {cls})]
'''

BODIES = {
    "descending": """
        order = np.argsort(-lengths, kind="stable")
        offsets = packing.greedy(lengths, order, request.token_budget)
        return windows.build(order, offsets, lengths, request)
    """,
    "raises": """
        raise RuntimeError("cannot plan on Sundays")
    """,
    "repeats": """
        order = np.zeros(len(lengths), np.int64)
        offsets = packing.greedy(lengths, order, request.token_budget)
        return windows.build(order, offsets, lengths, request)
    """,
    "overfills": """
        order = np.arange(len(lengths))
        offsets = packing.greedy(lengths, order, 2 * request.token_budget)
        return windows.build(order, offsets, lengths, request)
    """,
    "lists": """
        return [[row] for row in range(len(lengths))]
    """,
}


@pytest.fixture
def third_party(tmp_path):
    """Installs strategies as a third party's packages would be: a module and its metadata on the path.

    Every strategy has a distribution of its own, dflash-strategy-NAME if none is named. `start` is the
    first line of its module.
    """
    site = tmp_path / "site"

    def install(*names: str, distribution: str = "", start: str = "") -> dict[str, str]:
        for name in names:
            owner = distribution or f"dflash-strategy-{name}"
            module = f"{owner.replace('-', '_')}_{name}"
            info = site / f"{owner.replace('-', '_')}-1.2.dist-info"
            info.mkdir(parents=True)
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {owner}\nVersion: 1.2\n")
            (info / "entry_points.txt").write_text(f"[dflash]\n{name} = {module}\n")
            code = PLUGIN.format(cls=name.title(), name=name, body=BODIES[name].strip())
            (site / f"{module}.py").write_text(f"{start}\n{code}")
        return {"PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}

    return install


@pytest.fixture
def bench(tmp_path):
    """Runs dflash-bench in a directory of its own."""

    def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
        return run_command("dflash-bench", *arguments, cwd=tmp_path, env=env)

    return run


@pytest.fixture
def small_file(small_config, tmp_path):
    """The small run's settings as a file for --config."""
    file = tmp_path / "small.toml"
    file.write_text(dump_config(small_config))
    return str(file)
