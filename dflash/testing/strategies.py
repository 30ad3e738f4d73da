"""The conformance kit for strategies: does this one keep the contract?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from dflash.batching.plan import Strategy
from dflash.testing.rehearsal import Rehearsal
from dflash.testing.rules import RULES, Rule


@dataclass(frozen=True)
class Finding:
    """A rule that the strategy breaks, or, as a note, one that it says it does not mean to keep."""

    rule: str
    kind: Literal["failed", "note"]
    message: str  # one line: the first case that breaks the rule, and how many more there are


def check_strategy(strategy: Strategy) -> list[Finding]:
    """All findings, in the order of RULES; none if the strategy keeps the contract.

    A strategy that is the same in every epoch by design says so by a class attribute or property
    `same_every_epoch` that is true; what follows from that is noted, not failed.
    """
    rehearsal = Rehearsal(strategy)
    found = [check_rule(rule, rehearsal) for rule in RULES.values()]
    return [finding for finding in found if finding is not None]


def check_rule(rule: Rule, rehearsal: Rehearsal) -> Finding | None:
    """What there is to say about one rule; None if it is kept."""
    breaches = list(rule.breaches(rehearsal))
    if not breaches:
        return None
    meant = rule.may_be_meant and bool(getattr(rehearsal.strategy, "same_every_epoch", False))
    more = f"; and {len(breaches) - 1} more cases" if len(breaches) > 1 else ""
    return Finding(rule.name, "note" if meant else "failed", breaches[0] + more)


def strategy_contract(strategy: Strategy, *others: Strategy) -> Callable[..., None]:
    """A pytest function with one test for each strategy and rule.

    test_contract = strategy_contract(Mine(), Mine(step=2))
    """
    import pytest  # an author's tests have it, a user's installation need not

    rehearsals = [pytest.param(Rehearsal(one), id=repr(one)) for one in (strategy, *others)]

    @pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
    @pytest.mark.parametrize("rehearsal", rehearsals)
    def test_contract(rehearsal: Rehearsal, rule: Rule) -> None:
        finding = check_rule(rule, rehearsal)
        if finding is not None and finding.kind == "failed":
            pytest.fail(f"{rule.summary}: {finding.message}", pytrace=False)

    return test_contract
