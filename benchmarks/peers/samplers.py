"""The samplers that people use today, from their own packages, each given nothing but lengths.

Each function gives its micro-batches as arrays of lengths, in the order of training, and the seconds that it
took to find them. What a package needs to be handed lengths at all (cuts, tables) is made off the clock.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import distribution
from typing import Any, TypeVar

import numpy as np

from dflash.batching.plan import BatchPlan, IntArray, Layout, PlanRequest
from dflash.batching.planning import make_plan
from dflash.plugin_manager import Arm

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Built:
    """Micro-batches, int64[rows] of lengths each, their layout, and the seconds it took to build them."""

    batches: list[IntArray]
    layout: Layout
    seconds: float


def ours(arm: Arm, lengths: IntArray, request: PlanRequest) -> Built:
    """The strategy's plan with its certificate; the faster of two, so that nothing is compiled."""

    def plan() -> tuple[BatchPlan, IntArray]:
        return make_plan(arm.strategy, lengths, request, name=arm.name)

    first, _ = _timed(plan)
    second, (made, used) = _timed(plan)
    batches = [used[made.batch(number)] for number in range(made.batches)]
    return Built([batch for batch in batches if len(batch)], made.layout, min(first, second))


def lhotse_dynamic_bucketing(lengths: IntArray, request: PlanRequest) -> Built:
    """lhotse.dataset.sampling.DynamicBucketingSampler with six buckets, a token being a second."""
    from lhotse import CutSet
    from lhotse.cut import MonoCut
    from lhotse.dataset.sampling import DynamicBucketingSampler

    cuts = CutSet(
        [
            MonoCut(id=str(row), start=0, duration=float(n), channel=0)
            for row, n in enumerate(lengths.tolist())
        ]
    )
    sampler = DynamicBucketingSampler(
        cuts, max_duration=request.token_budget, num_buckets=6, shuffle=True, world_size=1, rank=0
    )
    seconds, batches = _timed(lambda: [[cut.duration for cut in batch] for batch in sampler])
    return Built([np.array(batch, dtype=np.int64) for batch in batches], "padded", seconds)


def transformers_length_grouped(lengths: IntArray, request: PlanRequest) -> Built:
    """transformers' LengthGroupedSampler. It has no budget, so it gets as many rows as the longest allows."""
    import torch
    from transformers.trainer_pt_utils import LengthGroupedSampler

    rows = request.token_budget // int(lengths.max())
    generator = torch.Generator().manual_seed(request.seed)
    sampler = LengthGroupedSampler(rows, lengths=lengths.tolist(), generator=generator)
    seconds, order = _timed(lambda: np.array(list(sampler)))
    return Built(np.split(lengths[order], range(rows, len(order), rows)), "padded", seconds)


def trl_best_fit_decreasing(lengths: IntArray, request: PlanRequest) -> Built:
    """trl.pack_dataset(strategy="bfd") on a table of documents of one bit per token; packs shuffled after."""
    import pyarrow as pa
    from datasets import Dataset, disable_progress_bars
    from trl import pack_dataset

    disable_progress_bars()
    total = int(lengths.sum())
    bits = pa.Array.from_buffers(pa.bool_(), total, [None, pa.py_buffer(bytes(total // 8 + 1))])
    offsets: Any = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    documents = Dataset(pa.table({"input_ids": pa.ListArray.from_arrays(offsets, bits)}))
    options = {"keep_in_memory": True}
    seconds, packs = _timed(
        lambda: pack_dataset(documents, request.token_budget, strategy="bfd", map_kwargs=options)
    )
    found = packs.with_format("arrow")[:]["seq_lengths"].combine_chunks()
    batches = np.split(found.values.to_numpy(), found.offsets.to_numpy()[1:-1])
    order = np.random.default_rng(request.seed).permutation(len(batches))
    return Built([batches[number].astype(np.int64) for number in order], "packed", seconds)


def speculators_multipack(lengths: IntArray, request: PlanRequest) -> Built:
    """The multipack sampler of vLLM's speculators; on the clock is one rank, which plans for all of them."""
    ranks = [
        _speculators().MultipackDistributedBatchSamplerV2(
            request.token_budget, lengths, request.drafters, rank, seed=request.seed
        )
        for rank in range(request.drafters)
    ]
    seconds, first = _timed(lambda: list(ranks[0]))
    steps = zip(first, *ranks[1:], strict=True)
    return Built([lengths[batch] for step in steps for batch in step], "packed", seconds)


def _speculators() -> Any:
    """The sampler's file alone: its package wants an older transformers and builds of torch's companions."""
    path = distribution("speculators").locate_file("speculators/train/distributed_batch_sampler.py")
    spec = importlib.util.spec_from_file_location("speculators_sampler", str(path))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _timed(function: Callable[[], T]) -> tuple[float, T]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


PEERS: dict[str, Callable[[IntArray, PlanRequest], Built]] = {
    "lhotse": lhotse_dynamic_bucketing,
    "transformers": transformers_length_grouped,
    "trl": trl_best_fit_decreasing,
    "speculators": speculators_multipack,
}
