"""The drafter's hot paths beside what one would write without them: compare ratios, never seconds."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import pytest
import torch
from torch.nn import functional

from dflash.config import DrafterSettings
from dflash.data.sample import sample_target_dir
from dflash.models.drafter import Drafter, TargetHead
from dflash.models.loss import CrossEntropy
from dflash.models.position_weights import ExponentialDecay
from dflash.models.shape import DrafterShape
from dflash.models.target import Target

BLOCK = 16
SHAPE = DrafterShape(
    hidden_size=128,
    intermediate_size=384,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=32,
    vocab_size=2_048,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    block_size=BLOCK,
    mask_token_id=5,
    target_layers=8,
    target_layer_ids=(1, 2, 3, 4, 5),
)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def beside(benchmark, mine, peers, rounds=9):
    """Time ``mine``, with every peer once before each of its rounds; the median of peer / mine by name."""
    seconds = {name: [] for name in peers}

    def run_peers():
        for name, peer in peers.items():
            start = perf_counter()
            peer()
            seconds[name].append(perf_counter() - start)

    benchmark.pedantic(mine, setup=run_peers, rounds=rounds, warmup_rounds=1)
    own = np.array(benchmark.stats.stats.data)
    ratios = {name: float(np.median(np.array(found[-rounds:]) / own)) for name, found in seconds.items()}
    benchmark.extra_info |= {f"{name} / mine": round(ratio, 2) for name, ratio in ratios.items()}
    return ratios


LONG = [1024], [64]
"""one document with many blocks, as in the paper"""
rng = np.random.default_rng(0)
DRAWN = rng.integers(16, 1025, 50)
SHORT = (lengths := DRAWN[np.cumsum(DRAWN) <= 4096]), np.minimum(8, -(-lengths // 16))
"""a packed micro-batch of the sample preset"""


def drafter_step(attention, lengths, anchors):
    """Forward and backward of a drafter with hidden size 128 and 4/2 heads, without the target's head."""
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    document = np.repeat(np.arange(len(lengths)), anchors)
    drawn = [
        np.sort(rng.choice(length, n, replace=False)) for length, n in zip(lengths, anchors, strict=True)
    ]
    position = np.concatenate([np.sort(found) for found in drawn])
    torch.manual_seed(0)
    drafter = Drafter(SHAPE).computing_as(DrafterSettings(attention=attention))
    features = torch.randn(int(offsets[-1]), 5 * SHAPE.hidden_size)
    head = TargetHead(*torch.randn(2, SHAPE.vocab_size, SHAPE.hidden_size))
    token = torch.zeros(len(position), dtype=torch.int64)

    def step():
        drafter.zero_grad()
        context = drafter.encode(features, offsets)
        leaves = context.detached()
        attend = drafter.prepare_attention(document, position, offsets)
        drafter.draft(leaves, attend, torch.from_numpy(position), token, head).sum().backward()
        context.backward(leaves)

    return step


@pytest.mark.parametrize(
    ("micro_batch", "least"),
    [(LONG, {"reference": 3.0, "sdpa": 1.3}), (SHORT, {"reference": 3.0, "sdpa": 1.3})],
    ids=["1 x 1024, 64 blocks", "4,096 tokens in short documents, 8 blocks each"],
)
def test_drafter_forward_and_backward(benchmark, micro_batch, least):
    peers = {name: drafter_step(name, *micro_batch) for name in least}
    ratios = beside(benchmark, drafter_step("grouped", *micro_batch), peers)
    assert all(ratios[name] >= ratio for name, ratio in least.items()), ratios


def chunked(hidden, head, label):
    labelled = np.ones(label.shape, dtype=bool)
    CrossEntropy(ExponentialDecay(7.0))(hidden, label, labelled, head).loss.backward()


def whole(hidden, head, label):
    decay = (-torch.arange(BLOCK) / 7.0).exp()
    losses = functional.cross_entropy(
        hidden.flatten(0, 1) @ head.T, torch.from_numpy(label).flatten(), reduction="none"
    )
    (losses.view(label.shape) * decay).sum().backward()


@pytest.mark.parametrize("path", [chunked, whole], ids=["chunked", "torch (peer)"])
def test_cross_entropy_forward_and_backward(benchmark, path):
    benchmark.group = "cross-entropy of 3,200 labels, vocabulary 2,048"
    hidden = torch.randn(200, BLOCK, 96, requires_grad=True)
    arguments = hidden, torch.randn(2_048, 96), np.random.default_rng(0).integers(0, 2_048, (200, BLOCK))
    benchmark.pedantic(path, args=arguments, rounds=5, warmup_rounds=1)


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("shape", [(64, 64), (16, 256), (4, 1024)], ids=str)
def test_target_forward(benchmark, shape, layout):
    benchmark.group = f"target, {shape[0]} documents of {shape[1]} tokens"
    target = Target.load(sample_target_dir(), (1, 2, 3, 4, 5))
    ids, lengths = np.random.default_rng(0).integers(3, 2_048, shape), np.full(shape[0], shape[1])
    run = target.features if layout == "padded" else target.packed_features
    ids = ids if layout == "padded" else ids.reshape(1, -1)
    benchmark.pedantic(run, args=(ids, lengths), rounds=5, warmup_rounds=1)


def test_target_forward_at_equal_real_tokens(benchmark):
    """Documents of 64..1024 tokens: packed rows beside padded micro-batches of random composition."""
    target = Target.load(sample_target_dir(), (1, 2, 3, 4, 5))
    rng = np.random.default_rng(0)
    lengths = rng.integers(64, 1025, 40)
    padded, packed = filled(lengths, lambda rows: len(rows) * max(rows)), filled(lengths, sum)

    def run_padded():
        for rows in padded:
            target.features(rng.integers(3, 2_048, (len(rows), max(rows))), np.array(rows))

    def run_packed():
        for rows in packed:
            target.packed_features(rng.integers(3, 2_048, (1, sum(rows))), np.array(rows))

    ratios = beside(benchmark, run_packed, {"padded": run_padded}, rounds=5)
    assert ratios["padded"] >= 1.5, ratios


def filled(lengths, tokens, budget=8192):
    """The lengths in their order; a new micro-batch whenever ``tokens`` of the last are over the budget."""
    batches = [[]]
    for length in lengths.tolist():
        if tokens([*batches[-1], length]) > budget:
            batches.append([])
        batches[-1].append(length)
    return batches
