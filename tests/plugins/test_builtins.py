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

from dflash.batching.composition import measure, padding_efficiency
from dflash.batching.plan import PlanRequest, Strategy
from dflash.batching.planning import make_plan
from dflash_plugins.bucketed import Bucketed
from dflash_plugins.random import Random
from dflash_plugins.sorted import Sorted

STRATEGIES: list[Strategy] = [
    Random(),
    Sorted(),
    Sorted(order="shuffled"),
    Sorted(frozen=True),
    Bucketed(),
    Bucketed(buckets=1),
    Bucketed(buckets=1_000),
]
BUDGET = 64
TAILS = ["spread", "pad", "drop"]

each_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)


def request(**changes: Any) -> PlanRequest:
    fields = {"token_budget": BUDGET, "seed": 0, "epoch": 0, "drafters": 2, "accumulation": 2}
    return PlanRequest(**{**fields, "tail": "spread", **changes})


def lognormal(n: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The lengths of a real run in shape: median 1,800 tokens, sigma 0.6, cut to 65..8,191."""
    lengths = np.exp(np.random.default_rng(0).normal(np.log(1800), 0.6, n)).astype(np.int64)
    return np.clip(lengths, 65, 8191)


lengths_lists = st.one_of(
    st.lists(st.integers(1, BUDGET), max_size=60),
    st.lists(st.just(7), max_size=60),
    st.integers(0, 40).map(lambda n: [BUDGET] * n + [1] * n),
    st.integers(0, 60).map(lambda n: [1] * n + [BUDGET]),
)


@each_strategy
@settings(max_examples=60, deadline=None)
@given(lengths_lists, st.integers(1, 8), st.integers(1, 3), st.sampled_from(TAILS), st.integers(0, 3))
def test_the_contract(strategy: Strategy, lengths: list[int], m: int, a: int, tail: Any, epoch: int) -> None:
    asked = request(drafters=m, accumulation=a, tail=tail, epoch=epoch)
    plan, used = make_plan(strategy, np.array(lengths, dtype=np.int64), asked)
    assert used.tolist() == lengths
    batches = [plan.batch(number).tolist() for number in range(plan.batches)]
    planned = Counter(sample for batch in batches for sample in batch)
    assert planned + Counter(plan.ledger["id"].tolist()) == Counter(range(len(lengths)))
    assert all(len(batch) * max(lengths[s] for s in batch) <= BUDGET for batch in batches if batch)
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
names = "random,sorted,sorted:order=shuffled,sorted:frozen=true,bucketed,bucketed:buckets=3"
arms = PluginManager().arms(names)
print(json.dumps([make_plan(arm.strategy, lengths, request)[0].digest() for arm in arms]))
"""


def test_the_same_bytes_in_every_process_and_under_every_hash_seed() -> None:
    command = [sys.executable, "-c", PROGRAM, json.dumps(sys.path)]
    outputs = [
        json.loads(subprocess.check_output(command, env={**os.environ, "PYTHONHASHSEED": seed}))
        for seed in ("0", "1")
    ]
    assert outputs[0] == outputs[1]
    assert len(set(outputs[0])) == 6
    lengths = np.random.Generator(np.random.PCG64(3)).integers(1, 64, 2_000)
    here = make_plan(Random(), lengths, PlanRequest(64, 5, 1, 2, 3, "spread"))[0].digest()
    assert outputs[0][0] == here


@each_strategy
def test_no_global_generator_is_touched(strategy: Strategy) -> None:
    lengths = np.random.default_rng(4).integers(1, BUDGET, 200)
    before = random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    make_plan(strategy, lengths, request())
    assert (random.getstate(), repr(np.random.get_state())) == before  # noqa: NPY002


@pytest.mark.parametrize(
    ("strategy", "efficiency", "fill"),
    [(Random(), 0.4788, 0.435), (Bucketed(buckets=6), 0.836, 0.818), (Sorted(), 1.0, 0.971)],
    ids=repr,
)
def test_padding_as_an_independent_simulation_found_it(
    strategy: Strategy, efficiency: float, fill: float
) -> None:
    lengths = lognormal(902_087)
    asked = request(token_budget=49_152, drafters=8, accumulation=4)
    plan, used = make_plan(strategy, lengths, asked)
    assert padding_efficiency(plan, used) == pytest.approx(efficiency, abs=0.001)
    assert measure(plan, used).fill(49_152) == pytest.approx(fill, abs=0.001)


def test_sorted_pads_least_and_random_most() -> None:
    lengths = np.clip(lognormal(11_000) // 8, 16, 1_024)
    asked = request(token_budget=4_096, drafters=1)
    found = [
        padding_efficiency(*make_plan(strategy, lengths, asked))
        for strategy in (Sorted(), Bucketed(), Random())
    ]
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.98
    assert found[1] > found[2] + 0.2
