"""The kit itself: whatever breaks one rule is found by that rule and by no other."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from testing import broken

from dflash.plugin_manager import PluginManager
from dflash.testing import RULES, Finding, Rehearsal, check_strategy, strategy_contract
from dflash.testing.cases import BUDGET, contract_cases, large_case

OWN = [record for record in PluginManager().strategies() if record.distribution == "dflash"]
VARIANTS = (
    "sorted:order=shuffled,sorted:frozen=true,windowed:pool=7,bucketed:buckets=1,bucketed:buckets=1000,"
    "bucketed:windows=stratified,bucketed:windows=synced"
)
ARMS = PluginManager().arms(",".join([*(record.full_name for record in OWN), VARIANTS]))

test_the_built_ins_keep_the_contract = strategy_contract(*(arm.strategy for arm in ARMS))


@pytest.mark.parametrize("name", broken.BROKEN)
def test_a_broken_rule_is_found_by_exactly_that_rule(name):
    findings = check_strategy(getattr(broken, name)())
    assert [(finding.rule, finding.kind) for finding in findings] == [(broken.BROKEN[name], "failed")]
    assert "\n" not in findings[0].message and len(findings[0].message) < 200


def test_every_rule_is_broken_by_something():
    assert set(broken.BROKEN.values()) == set(RULES)
    assert check_strategy(broken.Sound()) == []


def test_the_same_in_every_epoch_by_design_is_noted():
    findings = check_strategy(broken.InOrderByDesign())
    assert [(f.rule, f.kind) for f in findings] == [("differs-by-epoch", "note"), ("differs-by-seed", "note")]
    assert {finding.kind for finding in check_strategy(broken.InOrder())} == {"failed"}


def test_a_message_names_the_first_case_and_counts_the_others():
    (finding,) = check_strategy(broken.ReturnsLists())
    cases = sum(1 for _ in contract_cases())
    assert finding == Finding(
        "plans-any-lengths",
        "failed",
        "no samples, M=1, A=2, tail=spread: returned a list instead of a BatchPlan; "
        f"and {cases - 1} more cases",
    )


def test_a_failing_contract_fails_the_authors_test():
    contract = strategy_contract(broken.Loses())
    contract(Rehearsal(broken.Loses()), RULES["hard-budget"])
    with pytest.raises(pytest.fail.Exception, match=r"^every sample once, .*: .*loses samples \d+"):
        contract(Rehearsal(broken.Loses()), RULES["exactly-once"])


def test_a_strategy_that_cannot_be_moved_is_told_how():
    @dataclass(frozen=True)
    class Local(broken.Sound):
        pass

    (finding,) = check_strategy(Local())
    assert finding.rule == "same-bytes"
    assert "define it at the top of a module" in finding.message


def test_the_cases_are_what_they_say():
    cases = list(contract_cases())
    for name, good in {
        "no samples": lambda case: len(case.lengths) == 0,
        "one sample": lambda case: len(case.lengths) == 1,
        "all equal": lambda case: len(set(case.lengths.tolist())) == 1,
        "one giant": lambda case: sorted(case.lengths.tolist())[-2:] == [1, BUDGET],
        "half longest, half shortest": lambda case: set(case.lengths.tolist()) == {1, BUDGET},
    }.items():
        chosen = [case for case in cases if case.name == name]
        assert {case.request.drafters for case in chosen} == set(range(1, 9))
        assert {case.request.tail for case in chosen} == {"spread", "pad", "drop"}
        assert all(good(case) for case in chosen)
    assert any(0 < len(case.lengths) < case.request.window_size for case in cases)
    large = large_case()
    assert large.lengths.sum() > 2**31 > large.lengths.max() ** 2 // 4 > 0
    assert large.lengths.max() <= large.request.token_budget
