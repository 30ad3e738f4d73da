"""The drafter's hot paths beside what one would write without them: compare ratios, never seconds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from dflash.data.sample import sample_target_dir
from dflash.models.attention import block_attention, group_blocks
from dflash.models.loss import weighted_cross_entropy
from dflash.models.target import Target

HEADS, KV_HEADS, SIZE, BLOCK = 4, 2, 16, 16
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def micro_batch(documents: int, length: int, anchors: int):
    """Keys, values and queries of a micro-batch of equal documents, and where its blocks stand."""
    rng = np.random.default_rng(0)
    offsets = np.arange(documents + 1) * length
    document = np.repeat(np.arange(documents), anchors)
    position = np.sort(rng.integers(1, length, (documents, anchors)), axis=1).ravel()
    blocks, tokens = documents * anchors, documents * length
    q = torch.randn(blocks, BLOCK, HEADS, SIZE, requires_grad=True)
    own = [torch.randn(blocks, BLOCK, KV_HEADS, SIZE, requires_grad=True) for _ in range(2)]
    context = [torch.randn(tokens, KV_HEADS, SIZE, requires_grad=True) for _ in range(2)]
    return q, context, own, document, position, offsets


def grouped(q, context, own, document, position, offsets):
    partition = group_blocks(document, position, offsets, CPU)
    block_attention(q, *context, *own, partition).sum().backward()


def dense(q, context, own, document, position, offsets):
    """One mask over all context and all blocks: (N*B) x (T + N*B)."""
    blocks = len(document)
    place = torch.arange(offsets[-1])
    start = torch.from_numpy(offsets[document])[:, None]
    sees = (place >= start) & (place < start + torch.from_numpy(position)[:, None])
    mask = torch.cat([sees, torch.zeros(blocks, blocks * BLOCK, dtype=torch.bool)], 1)
    mask = mask.repeat_interleave(BLOCK, 0)
    number = torch.arange(blocks).repeat_interleave(BLOCK)
    mask[:, offsets[-1] :] = number[:, None] == number
    key, value = (
        torch.cat([past, mine.flatten(0, 1)]).transpose(0, 1)[None]
        for past, mine in zip(context, own, strict=True)
    )
    query = q.flatten(0, 1).transpose(0, 1)[None]
    functional.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True).sum().backward()


SHAPES = {"100 x 40, 2": (100, 40, 2), "16 x 256, 8": (16, 256, 8), "4 x 1024, 8": (4, 1024, 8)}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("path", [grouped, dense], ids=["grouped", "dense mask (peer)"])
def test_block_attention_forward_and_backward(benchmark, path, shape):
    benchmark.group = f"block attention, {shape} anchors"
    benchmark.pedantic(path, args=micro_batch(*SHAPES[shape]), rounds=5, warmup_rounds=1)


def chunked(hidden, head, label, weight):
    weighted_cross_entropy(hidden, head, label, weight)[0].backward()


def whole(hidden, head, label, weight):
    losses = functional.cross_entropy(hidden @ head.T, label, reduction="none")
    (losses * weight).sum().backward()


@pytest.mark.parametrize("path", [chunked, whole], ids=["chunked", "torch (peer)"])
def test_cross_entropy_forward_and_backward(benchmark, path):
    benchmark.group = "cross-entropy of 3,000 labels, vocabulary 2,048"
    hidden = torch.randn(3_000, 96, requires_grad=True)
    arguments = hidden, torch.randn(2_048, 96), torch.randint(2_048, (3_000,)), torch.rand(3_000)
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
