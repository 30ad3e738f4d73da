from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from oracles import (
    LOSS,
    dense_loss,
    document_slots,
    random_documents,
    random_drafter,
    random_head,
    small_shape,
)

from dflash.models.features import drop_non_finite
from dflash.training.micro_batch import add_gradient

SHAPE = small_shape()
BATCH = random_documents(SHAPE, [9, 30, 12, 1, 31], [[0, 3, 8], [2, 7, 20], [5], [], [1, 3, 29]])


def test_finite_features_pass_untouched():
    kept, bad = drop_non_finite(BATCH)
    assert kept is BATCH
    assert len(bad) == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("document", [0, 2, 3, 4])
def test_one_bad_value_takes_out_its_document_alone(document, value):
    features = BATCH.features_TF.clone()
    features[BATCH.offsets_D[document + 1] - 1, 5] = value
    kept, bad = drop_non_finite(replace(BATCH, features_TF=features))
    assert bad.tolist() == [100 + document]
    others = [d for d in range(5) if d != document]
    assert kept.rows_D.tolist() == [100 + d for d in others]

    drafter, head = random_drafter(SHAPE), random_head(SHAPE)
    sums = add_gradient(drafter, head, kept, loss=LOSS, anchor_budget=100)
    expected, weight = torch.zeros((), dtype=torch.float64), 0.0
    for d in others:
        alone = replace(BATCH, slots=document_slots(BATCH, d))
        loss, its_weight = dense_loss(drafter, head, alone)
        expected, weight = expected + loss.detach(), weight + its_weight
    torch.testing.assert_close(sums.loss, expected)
    assert sums.weight == pytest.approx(weight)
    assert all(bool(p.grad.isfinite().all()) for p in drafter.parameters() if p.grad is not None)


def test_nothing_is_left_of_a_batch_that_is_all_bad():
    kept, bad = drop_non_finite(replace(BATCH, features_TF=torch.full_like(BATCH.features_TF, torch.nan)))
    assert len(bad) == 5 and len(kept.slots) == 0 and kept.offsets_D.tolist() == [0]
