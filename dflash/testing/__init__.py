"""Kits for authors of plugins, to be used from their own tests.

from dflash.testing import strategy_contract
from my_package.strategy import Mine

test_contract = strategy_contract(Mine(), Mine(step=2))

The fixtures of ``dflash.bench.pytest_plugin`` are there without an import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dflash.testing.rehearsal import Rehearsal
    from dflash.testing.rules import RULES, Rule
    from dflash.testing.strategies import Finding, check_rule, check_strategy, strategy_contract

__all__ = [
    "RULES",
    "Finding",
    "Rehearsal",
    "Rule",
    "check_rule",
    "check_strategy",
    "strategy_contract",
]

_HOMES = {"RULES": "rules", "Rehearsal": "rehearsal", "Rule": "rules"}


def __getattr__(name: str) -> Any:
    """On demand, because every pytest of this installation imports the package for its plugin's sake."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'strategies')}"), name)
