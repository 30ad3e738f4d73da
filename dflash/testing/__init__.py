"""Kits for authors of plugins, to be used from their own tests.

from dflash.testing import strategy_contract
from my_package.strategy import Mine

test_contract = strategy_contract(Mine(), Mine(step=2))
"""

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
