from __future__ import annotations

import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import (
    LOSS,
    dense_hidden,
    document_slots,
    random_documents,
    random_drafter,
    random_head,
    small_shape,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dflash.config import DrafterSettings
from dflash.errors import UsageError
from dflash.models.drafter import Drafter
from dflash.training.micro_batch import add_gradient

SHAPE = small_shape()
DRAFTER = random_drafter(SHAPE)
HEAD = random_head(SHAPE)
BATCH = random_documents(SHAPE, [9, 30, 12, 1, 31], [[0, 3, 8], [2, 7, 20], [5], [], [1, 3, 29]])
HEAD_FP32 = type(HEAD)(HEAD.embedding_VH.float(), HEAD.head_VH.float())
BATCH_FP32 = replace(BATCH, features_TF=BATCH.features_TF.float())


def drafted(batch, drafter, head=HEAD):
    slots = batch.slots
    context = drafter.encode(batch.features_TF, batch.offsets_D)
    attend = drafter.prepare_attention(slots.document_N, slots.position_N, batch.offsets_D)
    position, token = torch.from_numpy(slots.position_N), torch.from_numpy(slots.token_N)
    return drafter.draft(context, attend, position, token, head)


@torch.no_grad()
def hidden(batch):
    return drafted(batch, DRAFTER)


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
            torch.testing.assert_close(found[mine], expected, rtol=0, atol=1e-12)


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
                slots.labelled_NB[one],
            ),
        )
        torch.testing.assert_close(hidden(alone)[0], together[n], rtol=0, atol=1e-12)


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


@pytest.mark.parametrize("attention", ["reference", "sdpa", "grouped"])
def test_every_backend_gives_the_same_drafter(attention):
    drafter = random_drafter(SHAPE).computing_as(DrafterSettings(attention=attention))
    with torch.no_grad():
        torch.testing.assert_close(drafted(BATCH, drafter), hidden(BATCH), rtol=0, atol=1e-12)


def test_a_backend_that_does_not_train_here_is_refused():
    with pytest.raises(UsageError, match="'flex' has no backward pass on cpu"):
        random_drafter(SHAPE).computing_as(DrafterSettings(attention="flex"))


@torch.no_grad()
def test_a_context_that_grows_is_the_context_of_the_whole():
    features = BATCH.features_TF[9:39]
    whole = DRAFTER.encode(features, np.array([0, 30])).pairs
    parts = [
        DRAFTER.encode(features[start:stop], np.array([0, stop - start]), first_position=start).pairs
        for start, stop in [(0, 11), (11, 12), (12, 30)]
    ]
    for layer, pair in enumerate(whole):
        for which, expected in enumerate(pair):
            grown = torch.cat([part[layer][which] for part in parts])
            torch.testing.assert_close(grown, expected, rtol=0, atol=1e-12)


def trained(drafter, batch=BATCH):
    """Loss sum of a micro-batch, in two chunks, and all gradients."""
    head = type(HEAD)(HEAD.embedding_VH.to(drafter.norm.weight), HEAD.head_VH.to(drafter.norm.weight))
    sums = add_gradient(drafter, head, batch, loss=LOSS, anchor_budget=6 * SHAPE.block_size)
    return sums.loss.item(), {name: weight.grad for name, weight in drafter.named_parameters()}


def test_checkpointing_changes_no_bit_of_the_gradients():
    loss, gradients = trained(random_drafter(SHAPE))
    settings = DrafterSettings(gradient_checkpointing=True)
    again, checkpointed = trained(random_drafter(SHAPE).computing_as(settings))
    assert again == loss
    assert all(torch.equal(checkpointed[name], gradient) for name, gradient in gradients.items())


class LiveMemory(TorchDispatchMode):
    """Most bytes that tensors made inside hold at one time."""

    def __init__(self):
        super().__init__()
        self._live = {}
        self.peak = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        out = function(*arguments, **(keywords or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._live:
                    self._live[storage._cdata] = storage.nbytes()
                    weakref.finalize(storage, self._live.pop, storage._cdata)
        self.peak = max(self.peak, sum(self._live.values()))
        return out


def test_checkpointing_keeps_one_layer_and_the_inputs_of_the_others():
    """Of eight layers' insides, one is there at a time; what remains of the others is their inputs."""
    shape = small_shape(layers=8)
    batch = random_documents(shape, [60, 70], [[*range(0, 60, 2)], [*range(0, 70, 2)]])

    def peak(checkpointing):
        drafter = random_drafter(shape)
        drafter.computing_as(DrafterSettings(gradient_checkpointing=checkpointing))
        for weight in drafter.parameters():
            weight.grad = torch.zeros_like(weight)
        with LiveMemory() as memory:
            drafted(batch, drafter).sum().backward()
        return memory.peak

    assert peak(checkpointing=True) < peak(checkpointing=False) / 3


@pytest.mark.parametrize("checkpointing", [False, True])
def test_half_precision_products_over_fp32_weights(checkpointing):
    """bf16 rounds to 8 bits: the loss stays within 2 % of fp32's, the gradients point the same way."""
    loss, gradients = trained(random_drafter(SHAPE).float(), BATCH_FP32)
    settings = DrafterSettings(compute_dtype="bfloat16", gradient_checkpointing=checkpointing)
    half_loss, half = trained(random_drafter(SHAPE).float().computing_as(settings), BATCH_FP32)
    assert half_loss != loss
    assert half_loss == pytest.approx(loss, rel=0.02)
    for name, gradient in gradients.items():
        assert half[name].dtype == torch.float32
        cosine = torch.nn.functional.cosine_similarity(half[name].flatten(), gradient.flatten(), dim=0)
        assert cosine > 0.99, name


def test_what_is_computed_in_half_precision_and_what_is_not():
    drafter = random_drafter(SHAPE).float().computing_as(DrafterSettings(compute_dtype="bfloat16"))
    products, others = set(), set()

    class Dtypes(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            name, out = function.overloadpacket.__name__, function(*arguments, **(keywords or {}))
            if name in ("mm", "addmm"):
                products.add(out.dtype)
            elif name in ("_fused_rms_norm", "rsqrt", "cos", "sin", "exp", "exp_", "logaddexp"):
                others.add(out[0].dtype if isinstance(out, tuple) else out.dtype)
            return out

    with Dtypes():
        out = drafted(BATCH_FP32, drafter, HEAD_FP32)
    assert (products, others, out.dtype) == ({torch.bfloat16}, {torch.float32}, torch.float32)


def test_a_drafter_in_half_precision_throughout_still_drafts():
    """As servers load it: the weights themselves are bf16, norms and angles are not."""
    drafter = random_drafter(SHAPE).to(torch.bfloat16)
    with torch.no_grad():
        found = drafted(BATCH_FP32, drafter, HEAD_FP32).double()
    difference = (found - hidden(BATCH)).norm() / hidden(BATCH).norm()
    assert 0 < difference < 0.05


def test_settings_leave_the_weights_as_they_are():
    drafter = random_drafter(SHAPE).float()
    before = {name: weight.clone() for name, weight in drafter.state_dict().items()}
    drafter.computing_as(DrafterSettings(compute_dtype="bfloat16", gradient_checkpointing=True))
    after = drafter.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
