from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import BlockCase, attention_inputs, slow_attention

from dflash.errors import UsageError
from dflash.models.attention import backend_for, group_blocks, prepare_attention
from dflash.models.attention.flex import TILE, shape_class, tile_blocks
from dflash.models.attention.reference import dense_mask

CPU = torch.device("cpu")


@st.composite
def cases(draw, longest=40, most_blocks=10):
    """Documents of unsorted sizes, some without a block; anchors at 0, which see nothing, are frequent."""
    lengths = draw(st.lists(st.integers(1, longest), min_size=1, max_size=5))
    anchors = [
        sorted(draw(st.sets(st.just(0) | st.integers(0, length - 1), max_size=most_blocks)))
        for length in lengths
    ]
    heads, kv_heads = draw(st.sampled_from([(4, 2), (4, 1), (4, 4)]))
    return BlockCase(lengths, anchors, block=draw(st.integers(1, 7)), heads=heads, kv_heads=kv_heads, size=6)


def prepared(name, case):
    return prepare_attention(name, case.document_N, case.position_N, case.offsets_D, case.block, CPU)


def output_and_gradients(attend, inputs, seed=7):
    """The output, and the gradients of its sum weighted at random, for all five inputs."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = attend(*leaves)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed), dtype=out.dtype)
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), leaves)]


@settings(max_examples=60)
@given(cases(longest=12, most_blocks=4))
def test_reference_equals_scores_summed_one_by_one(case):
    inputs = attention_inputs(case)
    found = prepared("reference", case)(*inputs)
    torch.testing.assert_close(found, slow_attention(case, *inputs), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["sdpa", "grouped"])
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-9), (torch.float32, 1e-5)], ids=str)
def test_backends_agree_with_the_reference_in_outputs_and_gradients(name, dtype, atol):
    @settings(max_examples=60)
    @given(cases(), st.integers(0, 99))
    def agrees(case, seed):
        inputs = [x.to(dtype) for x in attention_inputs(case, seed)]
        expected = output_and_gradients(prepared("reference", case), inputs)
        for found, right in zip(output_and_gradients(prepared(name, case), inputs), expected, strict=True):
            torch.testing.assert_close(found, right, rtol=atol, atol=atol)

    agrees()


MANY = BlockCase(
    lengths=[700, 40, 300, 310, 5],
    anchors=[[*range(0, 699, 18)], [3, 39], [0, 1, 299], [17, 290, 301], [4]],
    block=5,
    heads=4,
    kv_heads=2,
    size=6,
)
"""Long enough for several pieces of several runs each."""


@pytest.mark.parametrize("name", ["sdpa", "grouped"])
def test_many_pieces_agree_with_the_reference(name):
    inputs = attention_inputs(MANY)
    expected = output_and_gradients(prepared("reference", MANY), inputs)
    for found, right in zip(output_and_gradients(prepared(name, MANY), inputs), expected, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-9)


def test_pieces_partition_the_blocks_and_show_each_its_prefix():
    pieces = group_blocks(MANY.document_N, MANY.position_N, MANY.offsets_D, CPU).pieces
    assert len(pieces) > 3
    assert any(len(piece.slots_Rn) > 1 for piece in pieces)
    seen = {}
    for piece in pieces:
        for slots, context, hidden in zip(piece.slots_Rn, piece.context_RS, piece.hidden_RnE, strict=True):
            for slot, tail in zip(slots.tolist(), hidden, strict=True):
                assert slot not in seen
                seen[slot] = [*context[: piece.first].tolist(), *context[piece.first :][~tail].tolist()]
    for slot, (document, position) in enumerate(zip(MANY.document_N, MANY.position_N, strict=True)):
        start = MANY.offsets_D[document]
        assert seen.get(slot, []) == list(range(start, start + position))


def test_scores_far_apart_stay_finite():
    """A hidden score may lie hundreds above all that a block sees, which an exponential does not survive."""
    case = BlockCase([30], [[2, 9, 29]], block=3, heads=2, kv_heads=1, size=4)
    q, past_key, *others = attention_inputs(case)
    inputs = [x.float() for x in (q * 40, past_key * 40, *others)]
    expected = output_and_gradients(prepared("reference", case), inputs)
    for found, right in zip(output_and_gradients(prepared("grouped", case), inputs), expected, strict=True):
        assert found.isfinite().all()
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["reference", "sdpa", "grouped"])
def test_half_precision_comes_and_goes_as_it_is(name):
    """Inputs in bf16 give an output in bf16, within its rounding of the exact one."""
    inputs = [x.bfloat16() for x in attention_inputs(MANY)]
    found = prepared(name, MANY)(*inputs)
    exact = prepared("reference", MANY)(*(x.double() for x in inputs))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), exact, rtol=2**-7, atol=2**-7)


def uncompiled_flex(case):
    return tile_blocks(case.document_N, case.position_N, case.offsets_D, case.block, CPU, compiled=False)


@settings(max_examples=25)
@given(cases())
def test_flex_sees_what_the_dense_mask_shows(case):
    """Its rule on every pair of positions, and its tiles: none that is seen is skipped or left unmasked."""
    attend = uncompiled_flex(case)
    rows, context, mask = len(case.document_N) * case.block, case.offsets_D[-1], attend.mask
    query, key = torch.arange(attend.queries)[:, None], torch.arange(attend.context + attend.queries)
    rule = mask.mask_mod(torch.tensor(0), torch.tensor(0), query, key)
    expected = dense_mask(case.document_N, case.position_N, case.offsets_D, case.block, CPU)
    own = slice(attend.context, attend.context + rows)
    assert torch.equal(torch.cat([rule[:rows, :context], rule[:rows, own]], dim=1), expected)
    assert not rule[:, context : attend.context].any(), "padded context"
    assert not rule[:rows, attend.context + rows :].any(), "padded blocks"
    assert rule.any(dim=1).all(), "a row that sees nothing has no softmax"

    tiles = rule.view(len(rule) // TILE, TILE, -1, TILE).transpose(1, 2).flatten(2)
    listed = [
        as_grid(mask.kv_num_blocks, mask.kv_indices),
        as_grid(mask.full_kv_num_blocks, mask.full_kv_indices),
    ]
    assert torch.equal(listed[0] | listed[1], tiles.any(-1))
    assert not (listed[1] & ~tiles.all(-1)).any(), "a tile without a mask must be seen whole"


def as_grid(counts, columns):
    """bool[I, K] from lists of columns."""
    grid = torch.zeros(columns.shape[-2:], dtype=torch.bool)
    for row, count in enumerate(counts[0, 0].tolist()):
        grid[row, columns[0, 0, row, :count].long()] = True
    return grid


def test_flex_skips_and_fills_whole_tiles():
    """64 blocks of 16 in a document of 1,024: half of the tiles of context are seen, most of them whole."""
    case = BlockCase([1024], [[*range(8, 1024, 16)]], block=16, heads=1, kv_heads=1, size=4)
    mask = uncompiled_flex(case).mask
    # Row i of tiles holds the blocks 8 i .. 8 i + 7, with anchors 128 i + 8 .. 128 i + 120.
    assert mask.full_kv_num_blocks.flatten().tolist() == list(range(8))
    assert mask.kv_num_blocks.flatten().tolist() == [2] * 8, "the diagonal of the context, and the blocks"


@settings(max_examples=5)
@given(cases())
def test_flex_in_plain_operations_agrees_with_the_reference(case):
    inputs = attention_inputs(case)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is slow uncompiled
        attend = tile_blocks(
            case.document_N, case.position_N, case.offsets_D, case.block, CPU, compiled=False
        )
        found = attend(*inputs)
    torch.testing.assert_close(found, prepared("reference", case)(*inputs), rtol=1e-9, atol=1e-9)


def test_shape_classes_are_few_and_never_too_small():
    assert [shape_class(n) for n in (0, 1, 128, 129, 1000, 1024, 1025)] == [
        128,
        128,
        128,
        256,
        1024,
        1024,
        2048,
    ]
    assert len({shape_class(n) for n in range(1, 65_537)}) == 10


def test_auto_takes_the_fast_path_of_each_device():
    assert [backend_for("auto", torch.device(device)) for device in ("cpu", "cuda:1")] == ["grouped", "flex"]
    assert backend_for("sdpa", torch.device("cuda")) == "sdpa"


def test_flex_is_refused_where_it_cannot_train():
    with pytest.raises(UsageError, match=r"'flex' has no backward pass on cpu: take 'auto' or 'grouped'"):
        backend_for("flex", CPU)


def test_a_sum_of_many_backward_passes_is_the_same_every_time():
    inputs = [x.float() for x in attention_inputs(MANY)]
    first, second = (output_and_gradients(prepared("grouped", MANY), inputs) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_hidden_positions_get_no_gradient():
    """Exactly none: the context behind the last anchor, and documents that no block is in."""
    case = BlockCase([20, 9], [[4, 11], []], block=2, heads=2, kv_heads=1, size=4)
    _, _, past_key, past_value, *_ = output_and_gradients(prepared("grouped", case), attention_inputs(case))
    for gradient in (past_key, past_value):
        assert np.flatnonzero(gradient.abs().sum((1, 2)).numpy()).tolist() == list(range(11))
