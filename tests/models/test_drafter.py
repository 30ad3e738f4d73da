from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import (
    dense_hidden,
    document_slots,
    random_documents,
    random_drafter,
    random_head,
    small_shape,
)

from dflash.errors import UsageError
from dflash.models.attention import group_blocks
from dflash.models.drafter import Drafter

SHAPE = small_shape()
DRAFTER = random_drafter(SHAPE)
HEAD = random_head(SHAPE)
BATCH = random_documents(SHAPE, [9, 30, 12, 1, 31], [[0, 3, 8], [2, 7, 20], [5], [], [1, 3, 29]])


@torch.no_grad()
def hidden(batch):
    slots = batch.slots
    context = DRAFTER.encode(batch.features_TF, batch.offsets_D)
    partition = group_blocks(slots.document_N, slots.position_N, batch.offsets_D, torch.device("cpu"))
    position, token = torch.from_numpy(slots.position_N), torch.from_numpy(slots.token_N)
    return DRAFTER.draft(context, partition, position, token, HEAD)


def block(document, index):
    """Place of a document's block among all blocks of BATCH."""
    return int(np.flatnonzero(BATCH.slots.document_N == document)[index])


@st.composite
def documents(draw):
    lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
    anchors = [sorted(draw(st.sets(st.integers(0, length - 1), max_size=5))) for length in lengths]
    return random_documents(SHAPE, lengths, anchors, seed=draw(st.integers(0, 99)))


@settings(max_examples=40, deadline=None)
@given(documents().filter(lambda batch: len(batch.slots)))
def test_equals_the_dense_oracle(batch):
    found = hidden(batch)
    for document in range(len(batch.offsets_D) - 1):
        slots = document_slots(batch, document)
        if len(slots):
            features = batch.features_TF[batch.offsets_D[document] : batch.offsets_D[document + 1]]
            expected = dense_hidden(DRAFTER, HEAD, features, slots)
            mine = torch.from_numpy(batch.slots.document_N == document)
            torch.testing.assert_close(found[mine], expected, rtol=0, atol=1e-6)  # its inv_freq is fp32


def change_feature(document, position):
    features = BATCH.features_TF.clone()
    features[BATCH.offsets_D[document] + position] += 1.0
    return (hidden(replace(BATCH, features_TF=features)) - hidden(BATCH)).abs().amax(dim=(1, 2)) > 0


@pytest.mark.parametrize("position", range(30))
def test_context_is_seen_strictly_before_the_anchor_and_in_no_other_document(position):
    changed = change_feature(1, position)
    for n, (document, anchor) in enumerate(zip(BATCH.slots.document_N, BATCH.slots.position_N, strict=True)):
        assert bool(changed[n]) == (document == 1 and position < anchor)


def test_blocks_are_blind_to_each_other():
    """Two anchors of document 1 lie 5 apart, those of document 4 only 2: overlapping blocks stay apart."""
    for document, index in [(1, 0), (4, 1)]:
        n = block(document, index)
        tokens = BATCH.slots.token_N.copy()
        tokens[n] = (tokens[n] + 1) % SHAPE.vocab_size
        changed = hidden(replace(BATCH, slots=replace(BATCH.slots, token_N=tokens))) != hidden(BATCH)
        assert changed.flatten(1).any(1).nonzero().flatten().tolist() == [n]
        assert changed[n].any(-1).all(), "every slot of a block sees its anchor token, in both directions"


def test_grouping_changes_nothing():
    """Each block alone gives what it gives among all the others."""
    together = hidden(BATCH)
    for n in range(len(BATCH.slots)):
        one = slice(n, n + 1)
        slots = BATCH.slots
        alone = replace(
            BATCH,
            slots=type(slots)(
                slots.document_N[one],
                slots.position_N[one],
                slots.token_N[one],
                slots.label_NB[one],
                slots.weight_NB[one],
            ),
        )
        torch.testing.assert_close(hidden(alone)[0], together[n], rtol=0, atol=1e-12)


def test_groups_partition_the_blocks_and_keep_inside_their_documents():
    partition = group_blocks(
        BATCH.slots.document_N, BATCH.slots.position_N, BATCH.offsets_D, torch.device("cpu")
    )
    order = torch.cat([group.slots_Rn.flatten() for group in partition.groups])
    assert sorted(order.tolist()) == list(range(len(BATCH.slots)))
    assert order[partition.inverse_N].tolist() == list(range(len(BATCH.slots)))
    for group in partition.groups:
        seen = ~group.hidden_RnS
        for r, slots in enumerate(group.slots_Rn.tolist()):
            for i, n in enumerate(slots):
                start = BATCH.offsets_D[BATCH.slots.document_N[n]]
                positions = group.context_RS[r][seen[r, i]].tolist()
                assert positions == list(range(start, start + BATCH.slots.position_N[n]))


def test_parameter_names_are_the_published_ones():
    shape = small_shape(layers=5)
    names = {name: tuple(weight.shape) for name, weight in Drafter(shape).state_dict().items()}
    h, i, d = shape.hidden_size, shape.intermediate_size, shape.head_dim
    expected = {"fc.weight": (h, 3 * h), "hidden_norm.weight": (h,), "norm.weight": (h,)}
    for n in range(5):
        layer = f"layers.{n}."
        expected |= {
            layer + "input_layernorm.weight": (h,),
            layer + "post_attention_layernorm.weight": (h,),
            layer + "self_attn.q_proj.weight": (6 * d, h),
            layer + "self_attn.k_proj.weight": (2 * d, h),
            layer + "self_attn.v_proj.weight": (2 * d, h),
            layer + "self_attn.o_proj.weight": (h, 6 * d),
            layer + "self_attn.q_norm.weight": (d,),
            layer + "self_attn.k_norm.weight": (d,),
            layer + "mlp.gate_proj.weight": (i, h),
            layer + "mlp.up_proj.weight": (i, h),
            layer + "mlp.down_proj.weight": (h, i),
        }
    assert names == expected
    assert len(names) == 58, "five layers of eleven tensors, and three"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target_layer_ids": (1, 1, 2)}, "distinct"),
        ({"target_layer_ids": ()}, "distinct"),
        ({"target_layer_ids": (1, 7)}, "reach past layer 6"),
        ({"heads": 5}, "cannot share"),
        ({"mask_token_id": 61}, "vocabulary of 61"),
    ],
)
def test_shapes_that_no_server_loads_are_refused(changes, words):
    with pytest.raises(UsageError, match=words):
        small_shape(**changes)


def test_rope_keeps_its_angle_at_long_positions():
    """Half precision would be off by whole turns at position 30,000."""
    positions = torch.tensor([30_000])
    cos, _ = DRAFTER._rope(positions, torch.zeros(1, dtype=torch.bfloat16))
    exact, _ = DRAFTER._rope(positions, torch.zeros(1, dtype=torch.float64))
    assert (cos.double() - exact).abs().max() < 2**-7
