"""What a strategy promises, rule by rule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dflash.batching.plan import BatchPlan
from dflash.testing.cases import KEYS, Case, varied_case
from dflash.testing.fresh_process import digests, digests_elsewhere
from dflash.testing.plan_checks import not_once, over_budget, uncertified, unequal_window
from dflash.testing.rehearsal import Outcome, Rehearsal

Breaches = Callable[[Rehearsal], Iterator[str]]


@dataclass(frozen=True)
class Rule:
    """A promise; `breaches` yields a line for every case that breaks it."""

    name: str
    summary: str
    breaches: Breaches
    may_be_meant: bool = False  # by a strategy that says `same_every_epoch`


RULES: dict[str, Rule] = {}


def _rule(summary: str, *, may_be_meant: bool = False) -> Callable[[Breaches], None]:
    def register(breaches: Breaches) -> None:
        name = breaches.__name__.strip("_").replace("_", "-")
        RULES[name] = Rule(name, summary, breaches, may_be_meant)

    return register


@_rule("whatever the lengths, a BatchPlan whose arrays fit together")
def _plans_any_lengths(rehearsal: Rehearsal) -> Iterator[str]:
    for outcome in rehearsal.outcomes:
        if outcome.flaw and not outcome.wrote:
            yield f"{outcome.case}: {outcome.flaw}"


@_rule("every sample once, or in the ledger as the tail's")
def _exactly_once(rehearsal: Rehearsal) -> Iterator[str]:
    yield from _on_plans(not_once, rehearsal.outcomes)


@_rule("no micro-batch over the token budget")
def _hard_budget(rehearsal: Rehearsal) -> Iterator[str]:
    yield from _on_plans(over_budget, rehearsal.outcomes)


@_rule("windows of exactly A x M micro-batches, for M from 1 to 8 and every tail")
def _equal_windows(rehearsal: Rehearsal) -> Iterator[str]:
    yield from _on_plans(unequal_window, rehearsal.outcomes)


@_rule("the certificate that guards trainer and trials accepts the plan")
def _certificate(rehearsal: Rehearsal) -> Iterator[str]:
    yield from _on_plans(uncertified, rehearsal.outcomes)


@_rule("all of this for lengths of more than 2^31 tokens in all, too")
def _beyond_2_31(rehearsal: Rehearsal) -> Iterator[str]:
    # What fails for few tokens as well is another rule's.
    outcome = rehearsal.large
    if outcome.flaw and not any(small.flaw for small in rehearsal.outcomes):
        yield f"{outcome.case}: {outcome.flaw}"
    for breach in (not_once, over_budget, unequal_window, uncertified):
        found = list(_on_plans(breach, [outcome]))
        if found and not any(_on_plans(breach, rehearsal.outcomes)):
            yield from found


@_rule("A and M decide through their product only")
def _a_times_m(rehearsal: Rehearsal) -> Iterator[str]:
    if not _plans_all(rehearsal) or not rehearsal.repeatable:
        return  # is another rule's
    alike: dict[tuple[str, str, int], list[Outcome]] = defaultdict(list)
    for outcome in rehearsal.outcomes:
        request = outcome.case.request
        if not request.seed and not request.epoch:
            alike[outcome.case.name, request.tail, request.window_size].append(outcome)
    for first, *others in alike.values():
        for other in others:
            if _digest(other) != _digest(first):
                yield f"{other.case}: another plan than for M={first.case.request.drafters}"


@_rule("the same bytes when asked again, in any process, under any PYTHONHASHSEED")
def _same_bytes(rehearsal: Rehearsal) -> Iterator[str]:
    if not _plans_all(rehearsal):
        return  # is another rule's
    if not rehearsal.repeatable:
        yield "asked twice in one process: two plans"
        return
    try:
        elsewhere = digests_elsewhere(rehearsal.strategy, hash_seeds=("0", "1"))
    except RuntimeError as error:
        yield str(error)
        return
    for seed, found in elsewhere.items():
        if found != digests(rehearsal.strategy):
            yield f"in a new process with PYTHONHASHSEED={seed}: another plan"


@_rule("another plan in another epoch", may_be_meant=True)
def _differs_by_epoch(rehearsal: Rehearsal) -> Iterator[str]:
    yield from _equal_plans(rehearsal, [key for key in KEYS if key[0] == 0])


@_rule("another plan for another seed", may_be_meant=True)
def _differs_by_seed(rehearsal: Rehearsal) -> Iterator[str]:
    yield from _equal_plans(rehearsal, [key for key in KEYS if key[1] == 0])


@_rule("seed and epoch are not added: (1, 1) is not (2, 0)")
def _seed_is_not_epoch(rehearsal: Rehearsal) -> Iterator[str]:
    # One that ignores either of them is told so by the two rules above.
    if not any(any(_equal_plans(rehearsal, [(1, 0), other])) for other in [(1, 1), (2, 0)]):
        yield from _equal_plans(rehearsal, [(1, 1), (2, 0)])


@_rule("the global generators of random and numpy stay as they are")
def _global_generators(rehearsal: Rehearsal) -> Iterator[str]:
    for outcome in rehearsal.outcomes:
        if outcome.drew:
            yield f"{outcome.case}: changed one; take request.rng(0)"


@_rule("the lengths are not written to")
def _lengths_untouched(rehearsal: Rehearsal) -> Iterator[str]:
    for outcome in rehearsal.outcomes:
        if outcome.wrote:
            yield f"{outcome.case}: they are others now; copy them first"


def _plans_all(rehearsal: Rehearsal) -> bool:
    return all(outcome.plan is not None for outcome in rehearsal.outcomes)


def _on_plans(breach: Callable[[BatchPlan, Case], str], outcomes: list[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        if outcome.plan is not None and (found := breach(outcome.plan, outcome.case)):
            yield f"{outcome.case}: {found}"


def _equal_plans(rehearsal: Rehearsal, keys: list[tuple[int, int]]) -> Iterator[str]:
    """A line for every (seed, epoch) whose plan is that of an earlier one."""
    found: dict[str, tuple[int, int]] = {}
    names = {varied_case(*key).name: key for key in keys}
    for outcome in rehearsal.outcomes:
        key = names.get(outcome.case.name)
        if key is not None and outcome.plan is not None:
            first = found.setdefault(outcome.plan.digest(), key)
            if first != key:
                yield f"(seed, epoch) = {key} gives the plan of {first}"


def _digest(outcome: Outcome) -> str:
    assert outcome.plan is not None
    return outcome.plan.digest()
