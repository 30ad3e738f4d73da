"""What drafters tell each other: the same sums everywhere, in rank order, whoever comes first."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dflash.pipeline import open_engine
from dflash.pipeline.engines.inline import InlinePipeline
from dflash.training.group import Alone, ChannelGroup, flatten, unflatten

TURNS = 3


def gradients(rank, turn):
    """Numbers whose sum depends on the order in which they are added."""
    drawn = torch.Generator().manual_seed(100 * rank + turn)
    scale = torch.tensor([1e8, 1.0, 1e-8])[torch.randint(3, (7,), generator=drawn)]
    return torch.randn(7, generator=drawn) * scale


def expected(size, turn):
    total = gradients(0, turn)
    for rank in range(1, size):
        total = total + gradients(rank, turn)
    return total


async def drafter(rank, size, inbox, outboxes, out):
    group = ChannelGroup(rank, size, inbox, outboxes)
    for turn in range(TURNS):
        matrix, vector = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(3))
        mine = gradients(rank, turn)
        matrix.grad, vector.grad = mine[:4].view(2, 2).clone(), mine[4:].clone()
        records = await group.reduce([matrix, vector], (rank, turn))
        await out.send((rank, turn, records, flatten([matrix, vector]).tolist()))


def run(pipeline, size):
    ends = [pipeline.channel(f"gradients-{rank}", items=size) for rank in range(size)]
    results_tx, results_rx = pipeline.channel("results", items=2)
    for rank in range(size):
        others = [sender.clone() for other, (sender, _) in enumerate(ends) if other != rank]
        pipeline.start(f"drafter-{rank}", drafter, rank, size, ends[rank][1], others, results_tx.clone())
    for sender, _ in ends:
        sender.close()
    results_tx.close()
    return list(pipeline.results(results_rx))


def check(results, size):
    assert sorted((rank, turn) for rank, turn, *_ in results) == [
        (rank, turn) for rank in range(size) for turn in range(TURNS)
    ]
    for _, turn, records, total in results:
        assert records == [(rank, turn) for rank in range(size)]
        assert total == expected(size, turn).tolist(), "the sum in rank order, to the last bit"


@settings(max_examples=60)
@given(size=st.integers(2, 4), seed=st.integers(0, 2**32))
def test_sums_are_those_in_rank_order_whatever_the_order_of_arrival(size, seed):
    with InlinePipeline(choose=random.Random(seed).randrange) as pipeline:
        check(run(pipeline, size), size)


def test_on_threads():
    with open_engine("thread") as pipeline:
        check(run(pipeline, 3), 3)


def test_no_gradient_is_a_gradient_of_zero_for_one_drafter_too():
    """Else its optimizer would leave out a step that it takes as one of several."""
    seen, unseen = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3))
    seen.grad = torch.ones(2)
    step = Alone().reduce([seen, unseen], "record")
    with pytest.raises(StopIteration) as returned:
        step.send(None)
    assert returned.value.value == ["record"]
    assert seen.grad.tolist() == [1, 1] and unseen.grad.tolist() == [0, 0, 0]


def test_flat_and_back():
    parameters = [nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(4))]
    parameters[0].grad = torch.arange(6.0).view(2, 3)
    vector = flatten(parameters)
    assert vector.tolist() == [0, 1, 2, 3, 4, 5, 0, 0, 0, 0]
    unflatten(vector + 1, parameters)
    assert parameters[0].grad.tolist() == [[1, 2, 3], [4, 5, 6]] and parameters[1].grad.tolist() == [1] * 4
