from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import (
    LOSS,
    dense_hidden,
    dense_loss,
    document_slots,
    random_documents,
    random_drafter,
    random_head,
    small_shape,
)

from dflash.models.anchors import AnchorSlots
from dflash.models.features import FeatureBatch
from dflash.models.loss import CrossEntropy
from dflash.training.micro_batch import add_gradient, loss_only

SHAPE = small_shape()
HEAD = random_head(SHAPE)
LENGTHS = [9, 30, 12, 1, 31, 17]
ANCHORS = [[0, 3, 8], [2, 7, 20], [5], [], [1, 3, 29], [4, 11]]
WINDOW = random_documents(SHAPE, LENGTHS, ANCHORS)


def part(batch, documents):
    """A micro-batch of some of the window's documents."""
    slots = [document_slots(batch, d) for d in documents]
    pieces = [batch.features_TF[batch.offsets_D[d] : batch.offsets_D[d + 1]] for d in documents]

    def joined(name, empty):
        return np.concatenate([empty, *(getattr(s, name) for s in slots)])

    none, wide = np.zeros(0, np.int64), np.zeros((0, SHAPE.block_size), np.int64)
    return FeatureBatch(
        features_TF=torch.cat([batch.features_TF[:0], *pieces]),
        offsets_D=np.concatenate([[0], np.cumsum([len(p) for p in pieces])]).astype(np.int64),
        rows_D=batch.rows_D[documents],
        slots=AnchorSlots(
            document_N=np.repeat(np.arange(len(documents)), [len(s) for s in slots]),
            position_N=joined("position_N", none),
            token_N=joined("token_N", none),
            label_NB=joined("label_NB", wide),
            labelled_NB=joined("labelled_NB", wide.astype(bool)),
        ),
    )


def window_gradient(partition, anchor_budget, objective=LOSS):
    drafter = random_drafter(SHAPE)
    loss, weight = 0.0, 0.0
    for documents in partition:
        batch = part(WINDOW, documents)
        sums = add_gradient(drafter, HEAD, batch, loss=objective, anchor_budget=anchor_budget)
        loss, weight = loss + sums.loss.item(), weight + sums.weight.item()
    return loss / weight, {name: p.grad / weight for name, p in drafter.named_parameters()}


def oracle_gradient():
    drafter = random_drafter(SHAPE)
    loss, weight = dense_loss(drafter, HEAD, WINDOW)
    (loss / weight).backward()
    return (loss / weight).item(), {name: p.grad for name, p in drafter.named_parameters()}


@settings(max_examples=25, deadline=None)
@given(
    order=st.permutations(range(6)),
    cuts=st.sets(st.integers(0, 6), max_size=4),
    budget=st.sampled_from([5, 10, 35, 1000]),
)
def test_any_partition_of_a_window_gives_its_gradient(order, cuts, budget):
    edges = [0, *sorted(cuts), 6]
    partition = [sorted(order[a:b]) for a, b in pairwise(edges)]
    loss, gradient = window_gradient(partition, budget)
    expected_loss, expected = oracle_gradient()
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    for name, grad in expected.items():
        torch.testing.assert_close(gradient[name], grad, rtol=1e-6, atol=1e-9, msg=name)


@dataclass(frozen=True)
class AcceptancePaced:
    """Weights that follow from the drafter's own probabilities q of the labels, as D-PACE (arXiv 2605.18810)
    has them: w_j is the sum over m >= j of the product over i <= m of (1 - alpha) q_i + alpha."""

    alpha: float

    def __call__(self, labelled_NB, log_p_NB):
        smooth = (1 - self.alpha) * log_p_NB.exp() + self.alpha
        reach = torch.where(labelled_NB, smooth, 1).cumprod(1) * labelled_NB
        return reach.flip(1).cumsum(1).flip(1) * labelled_NB


def paced_oracle(drafter, alpha):
    """Loss sum and weight sum, block by block and slot by slot, from the dense model's logits."""
    total, weight_sum = torch.zeros((), dtype=torch.float64), 0.0
    for d in range(len(LENGTHS)):
        slots = document_slots(WINDOW, d)
        if not len(slots):
            continue
        features = WINDOW.features_TF[WINDOW.offsets_D[d] : WINDOW.offsets_D[d + 1]]
        log_p_NBV = (dense_hidden(drafter, HEAD, features, slots) @ HEAD.head_VH.T).log_softmax(-1)
        for n in range(len(slots)):
            labelled = np.flatnonzero(slots.labelled_NB[n]).tolist()
            log_p = {k: log_p_NBV[n, k, slots.label_NB[n, k]] for k in labelled}
            for j in labelled:
                weight = 0.0
                for m in labelled:
                    if m >= j:
                        q = [log_p[i].exp().item() for i in labelled if i <= m]
                        weight += math.prod((1 - alpha) * each + alpha for each in q)
                total = total - weight * log_p[j]
                weight_sum += weight
    return total, weight_sum


@pytest.mark.parametrize("rows_per_chunk", [3, 512])
@pytest.mark.parametrize("partition", [[[0, 1, 2, 3, 4, 5]], [[0], [1, 3], [2, 4, 5]]])
def test_a_rule_that_weighs_by_the_drafters_own_probabilities(partition, rows_per_chunk):
    """It needs nothing but the rule, and holds for any partition and chunk all the same."""
    paced = CrossEntropy(AcceptancePaced(0.5), rows_per_chunk=rows_per_chunk)
    loss, gradient = window_gradient(partition, 10, paced)
    drafter = random_drafter(SHAPE)
    expected, weight = paced_oracle(drafter, 0.5)
    (expected / weight).backward()
    assert loss == pytest.approx(expected.item() / weight, rel=1e-6)
    for name, parameter in drafter.named_parameters():
        # transformers makes the oracle's rotary frequencies in fp32.
        torch.testing.assert_close(gradient[name], parameter.grad, rtol=1e-6, atol=1e-7, msg=name)


def test_a_samples_loss_does_not_depend_on_its_batch_mates():
    drafter = random_drafter(SHAPE).float()
    head = type(HEAD)(HEAD.embedding_VH.float(), HEAD.head_VH.float())
    batch = FeatureBatch(WINDOW.features_TF.float(), WINDOW.offsets_D, WINDOW.rows_D, WINDOW.slots)
    alone = [
        loss_only(drafter, head, part(batch, [d]), loss=LOSS, anchor_budget=100).loss.item() for d in range(6)
    ]
    for mates in [[0, 1], [1, 4], [0, 1, 2, 3, 4, 5]]:
        together = loss_only(drafter, head, part(batch, mates), loss=LOSS, anchor_budget=100).loss.item()
        assert together == pytest.approx(sum(alone[d] for d in mates), rel=1e-5)


def test_sums_without_a_gradient_are_the_same():
    drafter = random_drafter(SHAPE)
    with_gradient = add_gradient(drafter, HEAD, WINDOW, loss=LOSS, anchor_budget=35)
    drafter.zero_grad()
    without = loss_only(drafter, HEAD, WINDOW, loss=LOSS, anchor_budget=35)
    assert without.loss.item() == with_gradient.loss.item()
    assert without.hits_B.tolist() == with_gradient.hits_B.tolist()
    assert all(p.grad is None for p in drafter.parameters())


def test_accuracy_counts_slots_and_labels():
    """Hits at slot k are the labels at slot k that the dense oracle ranks first as well."""
    drafter = random_drafter(SHAPE)
    hits, labels = np.zeros(SHAPE.block_size, int), np.zeros(SHAPE.block_size, int)
    for d in range(6):
        slots = document_slots(WINDOW, d)
        if not len(slots):
            continue
        features = WINDOW.features_TF[WINDOW.offsets_D[d] : WINDOW.offsets_D[d + 1]]
        best = (dense_hidden(drafter, HEAD, features, slots) @ HEAD.head_VH.T).argmax(-1).numpy()
        counted = slots.labelled_NB
        hits += ((best == slots.label_NB) & counted).sum(0)
        labels += counted.sum(0)
    sums = loss_only(drafter, HEAD, WINDOW, loss=LOSS, anchor_budget=1000)
    assert sums.hits_B.tolist() == hits.tolist()
    assert sums.labels_B.tolist() == labels.tolist()


def test_a_micro_batch_without_blocks_adds_nothing():
    drafter = random_drafter(SHAPE)
    for documents in [[], [3]]:
        sums = add_gradient(drafter, HEAD, part(WINDOW, documents), loss=LOSS, anchor_budget=35)
        assert (sums.loss.item(), sums.weight.item()) == (0.0, 0.0)
    assert all(p.grad is None for p in drafter.parameters())
