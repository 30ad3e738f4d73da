from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from dflash.batching.composition import measure, measure_composition
from dflash.batching.lengths import parse_lengths
from dflash.batching.plan import PlanRequest
from dflash.batching.planning import make_plan
from dflash_plugins.packed import Packed

LENGTHS = parse_lengths("lognormal:n=4000")
REQUEST = PlanRequest(49_152, 3, 1, 4, 2, "spread")


def test_windows_are_stretches_of_the_shuffle() -> None:
    plan, _ = make_plan(Packed(), LENGTHS, REQUEST)
    assert plan.layout == "packed"
    shuffled = REQUEST.rng(0).permutation(len(LENGTHS))
    bounds = plan.batch_offsets[plan.window_offsets].tolist()
    for start, end in pairwise(bounds):
        assert sorted(plan.samples[start:end].tolist()) == sorted(shuffled[start:end].tolist())


def test_micro_batches_of_a_window_are_evenly_filled() -> None:
    """Longest first ends within the shortest samples; a rank's sample count follows (speculators PR#867)."""
    plan, used = make_plan(Packed(), LENGTHS, REQUEST)
    counts = measure(plan, used)
    tokens = counts.real_tokens.reshape(-1, 8)[:-1]
    assert (np.ptp(tokens, axis=1) < 0.02 * REQUEST.token_budget).all()
    assert counts.fill(REQUEST.token_budget) > 0.97
    rows = counts.rows.reshape(-1, 8)[:-1].sum(axis=0)
    assert rows.max() / rows.min() < 1.1


def test_documents_are_dealt_evenly_in_length_too() -> None:
    """More even than independent draws, which have 3 bits."""
    plan, used = make_plan(Packed(), LENGTHS, REQUEST)
    assert measure_composition(plan, used, REQUEST).metrics["micro_batch_length_entropy"] > 3


def test_the_last_window_takes_as_few_micro_batches_as_will_do() -> None:
    lengths = np.array([6, 6, 4, 4])
    request = PlanRequest(10, 0, 0, 3, 1, "pad")
    plan, _ = make_plan(Packed(), lengths, request)
    batches = [sorted(lengths[plan.batch(number)].tolist()) for number in range(plan.batches)]
    assert batches == [[4, 6], [4, 6], []]
    dropped, _ = make_plan(Packed(), lengths, replace(request, tail="drop"))
    assert dropped.windows == 0
    assert len(dropped.ledger) == 4
