"""What the README says is true."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import numpy as np
import pytest

from dflash.batching.composition import padding_efficiency
from dflash.batching.plan import PlanRequest
from dflash.batching.planning import make_plan
from dflash.plugin_manager import PluginManager

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_strategy_in_it_works_as_it_says(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "readme_pooled.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    (spec,) = importlib.import_module("readme_pooled").dflash_strategies()
    lengths = np.random.default_rng(0).integers(1, 400, 5_000)
    request = PlanRequest(2_000, seed=0, epoch=0, drafters=2, accumulation=2, tail="spread")
    efficiency = {}
    for name, strategy in {
        "pooled": spec.strategy(pool=500),
        "random": PluginManager().get("random").strategy(),
    }.items():
        plan, used = make_plan(strategy, lengths, request)
        efficiency[name] = padding_efficiency(plan, used)
    assert efficiency["pooled"] > 0.9 > efficiency["random"]


def test_its_commands_are_those_of_ci():
    setups = re.findall(r"^\$ (python3 -m venv .*)$", README, re.MULTILINE)
    ci = (ROOT / ".ci" / "run").read_text().strip().splitlines()
    assert setups[1] == ci[-1], "the last step of CI is the README's test command"
    assert all(command.startswith(setups[1]) for command in setups)


@pytest.mark.parametrize("name", re.findall(r"^dflash-bench --strategy (\S+)", README, re.MULTILINE))
def test_the_strategies_it_names_exist(name):
    if "pooled" not in name:
        assert PluginManager().arms(name)


def test_its_links_lead_somewhere():
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / link).exists(), link
