"""What every built-in strategy promises, whatever its options."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.batching.composition import padding_efficiency
from dflash.batching.lengths import parse_lengths
from dflash.batching.plan import PlanRequest, Strategy
from dflash.batching.planning import make_plan
from dflash_plugins.bucketed import Bucketed
from dflash_plugins.first_fit import FirstFit
from dflash_plugins.packed import Packed
from dflash_plugins.random import Random
from dflash_plugins.sorted import Sorted
from dflash_plugins.step_window import StepWindow
from dflash_plugins.windowed import Windowed

STRATEGIES: list[Strategy] = [
    Random(),
    Sorted(),
    Sorted(order="shuffled"),
    Sorted(frozen=True),
    Bucketed(),
    Bucketed(buckets=1),
    Bucketed(buckets=1_000),
    Bucketed(boundaries="equal_tokens"),
    Bucketed(boundaries="quantile"),
    Bucketed(boundaries="equal_width"),
    Bucketed(boundaries="8+20"),
    Bucketed(windows="stratified"),
    Bucketed(windows="synced"),
    Windowed(),
    Windowed(pool=1),
    Windowed(pool=7),
    StepWindow(),
    Packed(),
    FirstFit(),
]
BUDGET = 64
TAILS = ["spread", "pad", "drop"]

each_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)


def request(**changes: Any) -> PlanRequest:
    fields = {"token_budget": BUDGET, "seed": 0, "epoch": 0, "drafters": 2, "accumulation": 2}
    return PlanRequest(**{**fields, "tail": "spread", **changes})


lengths_lists = st.one_of(
    st.lists(st.integers(1, BUDGET), max_size=60),
    st.lists(st.just(7), max_size=60),
    st.integers(0, 40).map(lambda n: [BUDGET] * n + [1] * n),
    st.integers(0, 60).map(lambda n: [1] * n + [BUDGET]),
    st.integers(0, 40).map(lambda n: [BUDGET // 2 + 1, 1] * n),
)


@each_strategy
@settings(max_examples=50)
@given(lengths_lists, st.integers(1, 8), st.integers(1, 3), st.sampled_from(TAILS), st.integers(0, 3))
def test_the_contract(strategy: Strategy, lengths: list[int], m: int, a: int, tail: Any, epoch: int) -> None:
    asked = request(drafters=m, accumulation=a, tail=tail, epoch=epoch)
    plan, used = make_plan(strategy, np.array(lengths, dtype=np.int64), asked)
    assert used.tolist() == lengths
    batches = [plan.batch(number).tolist() for number in range(plan.batches)]
    planned = Counter(sample for batch in batches for sample in batch)
    assert planned + Counter(plan.ledger["id"].tolist()) == Counter(range(len(lengths)))
    taken = [[lengths[sample] for sample in batch] for batch in batches if batch]
    tokens = [sum(some) if plan.layout == "packed" else len(some) * max(some) for some in taken]
    assert max(tokens, default=0) <= BUDGET
    assert [len(plan.window(number)) for number in range(plan.windows)] == [a * m] * plan.windows
    if tail != "drop":
        assert not len(plan.ledger)
        assert bool(plan.windows) == bool(lengths)


@each_strategy
@pytest.mark.parametrize("tail", TAILS)
def test_a_and_m_matter_through_their_product_only(strategy: Strategy, tail: Any) -> None:
    lengths = np.random.default_rng(1).integers(1, BUDGET, 500)
    digests = {
        make_plan(strategy, lengths, request(drafters=m, accumulation=12 // m, tail=tail))[0].digest()
        for m in (1, 2, 3, 4, 6, 12)
    }
    assert len(digests) == 1


@each_strategy
def test_every_epoch_and_seed_has_its_own_plan(strategy: Strategy) -> None:
    """sentence-transformers#3069, fairseq#1258: the same batches every epoch; and seed + epoch as a seed."""
    lengths = np.random.default_rng(2).integers(1, BUDGET, 300)
    keys = [*product(range(3), range(3)), (2**40, 0)]
    digests = {make_plan(strategy, lengths, request(seed=s, epoch=e))[0].digest() for s, e in keys}
    assert len(digests) == len(keys)
    again = make_plan(strategy, lengths, request(seed=1, epoch=1))[0].digest()
    assert again in digests


PROGRAM = """
import json, sys
sys.path[:0] = json.loads(sys.argv[1])
import numpy as np
from dflash.batching.plan import PlanRequest
from dflash.batching.planning import make_plan
from dflash.plugin_manager import PluginManager
lengths = np.random.Generator(np.random.PCG64(3)).integers(1, 64, 2_000)
request = PlanRequest(64, 5, 1, 2, 3, "spread")
arms = PluginManager().arms(sys.argv[2])
print(json.dumps([make_plan(arm.strategy, lengths, request)[0].digest() for arm in arms]))
"""


ARMS = (
    "random,sorted,sorted:order=shuffled,sorted:frozen=true,bucketed,bucketed:buckets=3,"
    "bucketed:boundaries=quantile,bucketed:boundaries=equal_tokens,bucketed:boundaries=equal_width,"
    "bucketed:boundaries=8+20,bucketed:windows=stratified,bucketed:windows=synced,"
    "windowed,windowed:pool=7,step_window,packed,first_fit"
)


def test_the_same_bytes_in_every_process_and_under_every_hash_seed() -> None:
    command = [sys.executable, "-c", PROGRAM, json.dumps(sys.path), ARMS]
    outputs = [
        json.loads(subprocess.check_output(command, env={**os.environ, "PYTHONHASHSEED": seed}))
        for seed in ("0", "1")
    ]
    assert outputs[0] == outputs[1]
    assert len(set(outputs[0])) == len(ARMS.split(","))
    lengths = np.random.Generator(np.random.PCG64(3)).integers(1, 64, 2_000)
    here = make_plan(Random(), lengths, PlanRequest(64, 5, 1, 2, 3, "spread"))[0].digest()
    assert outputs[0][0] == here


@each_strategy
def test_nothing_outside_the_plan_changes(strategy: Strategy) -> None:
    lengths = np.random.default_rng(4).integers(1, BUDGET, 200)
    before = random.getstate(), repr(np.random.get_state()), lengths.tolist()  # noqa: NPY002
    strategy.plan(lengths, request())  # writable here, as never from `make_plan`
    assert (random.getstate(), repr(np.random.get_state()), lengths.tolist()) == before  # noqa: NPY002


@each_strategy
def test_totals_past_32_bits(strategy: Strategy) -> None:
    lengths = np.random.default_rng(5).integers(2**24, 2**26, 300)
    plan, used = make_plan(strategy, lengths, request(token_budget=2**31 - 1))
    assert used[plan.samples].sum() == lengths.sum() > 2**33


def test_sorted_pads_least_and_random_most() -> None:
    lengths = np.clip(parse_lengths("lognormal:n=11000") // 8, 16, 1_024)
    asked = request(token_budget=4_096, drafters=1)
    found = [
        padding_efficiency(*make_plan(strategy, lengths, asked))
        for strategy in (Sorted(), Windowed(), Bucketed(), Random())
    ]
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.98
    assert found[2] > found[3] + 0.2
