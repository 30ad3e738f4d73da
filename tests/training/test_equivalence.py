"""A sample's loss and gradient are its own: whatever it is batched with, in whatever order and layout.

The whole line is run as in training, from the store through the target to the gradient, in fp64, where
rounding cannot be mistaken for a difference.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import dense_loss

from dflash.data.store import StoreSample, TokenStore, write_store
from dflash.models.drafter import Drafter, TargetHead
from dflash.models.initialisation import initialise
from dflash.models.layers import rope
from dflash.models.loss import block_loss
from dflash.models.shape import shape_for_target
from dflash.models.target import Target, load_causal_lm, target_head
from dflash.pipeline.stages import load, read_features
from dflash.pipeline.work import Work
from dflash.training.micro_batch import add_gradient, loss_only

BLOCK, MOST_ANCHORS = 8, 6
NO_ANCHOR, ONE_ANCHOR, SHORT, FROM_THE_START, UNSUPERVISED = 0, 1, 2, 3, 4


def masks():
    """Loss masks of the store's samples, the special ones first."""
    gap = np.zeros(40, np.uint8)
    gap[[5, 9, 39]] = 1  # supervised, but nowhere two in a row
    one = np.zeros(25, np.uint8)
    one[12:14] = 1
    short = np.ones(BLOCK - 4, np.uint8)
    start = np.zeros(20, np.uint8)
    start[:2] = 1  # its only anchor is at position 0, so its block sees no context at all
    yield from (gap, one, short, start, np.zeros(17, np.uint8))
    for length in (33, 64, 9, 64, 51):
        mask = np.zeros(length, np.uint8)
        mask[length // 3 :] = 1
        yield mask


class Line:
    """Store, target and drafter of a dtype, and what becomes of micro-batches in them."""

    def __init__(self, folder, path, config, dtype, target_dtype=None):
        model = load_causal_lm(folder).to(dtype)
        shape = shape_for_target(folder, config.drafter)
        self.store = TokenStore.open(path)
        self.config = config
        self.drafter: Drafter = initialise(Drafter(shape), model, seed=0).to(dtype)
        self.loss = block_loss(config.drafter)
        if target_dtype:
            model = load_causal_lm(folder, target_dtype)
        self.head: TargetHead = target_head(model)
        self.target = Target(model, shape.target_layer_ids, torch.device("cpu"))

    def batch(self, rows, layout="padded"):
        rows = np.array(rows, np.int64)
        work = Work(0, "train", 0, 0, layout, True, rows, self.store.lengths[rows])
        return read_features(load(work, self.store, self.config.drafter, seed=0), self.target).features

    def gradient(self, batches, anchor_budget=1000):
        """(loss sum, weight sum, gradient of the sums) over the micro-batches of a window."""
        self.drafter.zero_grad()
        sums = [
            add_gradient(self.drafter, self.head, batch, loss=self.loss, anchor_budget=anchor_budget)
            for batch in batches
        ]
        grads = [
            torch.zeros_like(weight) if weight.grad is None else weight.grad
            for weight in self.drafter.parameters()
        ]
        return (
            sum(part.loss.item() for part in sums),
            sum(float(part.weight) for part in sums),
            torch.cat([grad.flatten() for grad in grads]).clone(),
        )

    def sums(self, batch):
        return loss_only(self.drafter, self.head, batch, loss=self.loss, anchor_budget=1000)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("equivalence") / "store.arrow"
    samples = (
        StoreSample(rng.integers(0, 96, len(mask)), mask, f"{row}") for row, mask in enumerate(masks())
    )
    write_store(path, samples, {})
    return path


@pytest.fixture(scope="module")
def config():
    from dflash.config import load_config

    values = {"block_size": BLOCK, "max_anchors": MOST_ANCHORS, "anchor_stride": 1, "gamma": 3.0}
    plain = load_config()
    return msgspec.structs.replace(plain, drafter=msgspec.structs.replace(plain.drafter, **values))


@pytest.fixture(scope="module")
def exact(small_target, store, config):
    return Line(small_target, store, config, torch.float64)


@pytest.fixture(scope="module")
def samples_alone(exact):
    """The reference: every sample a micro-batch of its own."""
    return exact.gradient([exact.batch([row]) for row in range(len(exact.store))])


def close(found, expected):
    return (found - expected).norm() <= 1e-6 * expected.norm()


@settings(max_examples=12)
@given(
    order=st.permutations(range(10)),
    cuts=st.sets(st.integers(1, 9), max_size=5),
    layouts=st.lists(st.sampled_from(["padded", "packed"]), min_size=6, max_size=6),
    budget=st.sampled_from([BLOCK, 3 * BLOCK, 1000]),
)
def test_a_windows_gradient_is_the_same_for_any_partition_order_and_layout(
    exact, samples_alone, order, cuts, layouts, budget
):
    edges = pairwise([0, *sorted(cuts), 10])
    batches = [exact.batch(order[a:b], layout) for (a, b), layout in zip(edges, layouts, strict=False)]
    loss, weight, gradient = exact.gradient(batches, budget)
    assert (loss, weight) == pytest.approx(samples_alone[:2], rel=1e-6)
    assert close(gradient, samples_alone[2])


def test_the_whole_line_agrees_with_the_dense_oracle(exact, samples_alone):
    """Which knows no batches: one document, one matrix, one mask."""
    batch = exact.batch(range(10))
    assert len(batch.slots) * BLOCK % 128, "no multiple of any kernel's tile"
    exact.drafter.zero_grad()
    loss, weight = dense_loss(exact.drafter, exact.head, batch)
    loss.backward()
    gradient = torch.cat([weight.grad.flatten() for weight in exact.drafter.parameters()])
    assert (loss.item(), weight) == pytest.approx(samples_alone[:2], rel=1e-6)
    assert close(gradient, samples_alone[2])


def test_a_mean_of_means_would_depend_on_the_partition(exact, samples_alone):
    """What is divided once by the window's weight stays; what is divided per micro-batch does not."""
    rows = [[ONE_ANCHOR, FROM_THE_START], [5, 6, 7, 8, 9, SHORT, NO_ANCHOR, UNSUPERVISED]]
    parts = [exact.gradient([exact.batch(part)]) for part in rows]
    ours = sum(gradient for *_, gradient in parts) / sum(weight for _, weight, _ in parts)
    means = sum(gradient / weight for _, weight, gradient in parts) / len(parts)
    expected = samples_alone[2] / samples_alone[1]
    assert close(ours, expected)
    assert (means - expected).norm() > 0.1 * expected.norm()


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_a_sample_is_blind_to_its_batch_mates(exact, layout):
    """Other tokens in one document change its own features and no other's, to the last bit."""
    rows = [5, ONE_ANCHOR, 6, SHORT, 8]
    work = Work(0, "train", 0, 0, layout, True, np.array(rows), exact.store.lengths[rows])
    loaded = load(work, exact.store, exact.config.drafter, seed=0)
    before = read_features(loaded, exact.target).features
    starts, ends = before.offsets_D[:-1], before.offsets_D[1:]
    for changed in range(len(rows)):
        ids = loaded.batch.input_ids.copy()
        where = (changed, 0) if layout == "padded" else (0, starts[changed])
        ids[where] = (ids[where] + 1) % 96
        after = read_features(
            replace(loaded, batch=replace(loaded.batch, input_ids=ids)), exact.target
        ).features
        for document, part in enumerate(map(slice, starts, ends)):
            same = torch.equal(before.features_TF[part], after.features_TF[part])
            assert same == (document != changed)


def test_positions_restart_with_each_packed_document(exact):
    """A document twice in a row has the same features twice."""
    twice = exact.batch([9, 9], "packed").features_TF
    torch.testing.assert_close(twice[:51], twice[51:], rtol=1e-12, atol=1e-12)


def test_no_one_and_most_anchors(exact):
    """A sample without an anchor adds nothing and takes nothing away; one of few or many adds what it has."""
    anchors = {row: len(exact.batch([row]).slots) for row in range(10)}
    assert anchors == {0: 0, 1: 1, 2: 3, 3: 1, 4: 0, 5: 6, 6: 6, 7: 5, 8: 6, 9: 6}
    alone = exact.gradient([exact.batch([6])])
    beside = exact.gradient([exact.batch([NO_ANCHOR, 6, UNSUPERVISED])])
    assert beside[:2] == pytest.approx(alone[:2], rel=1e-12)
    assert close(beside[2], alone[2])
    assert exact.gradient([exact.batch([NO_ANCHOR, UNSUPERVISED])])[:2] == (0.0, 0.0)


def test_a_sample_shorter_than_a_block_has_the_labels_that_it_has(exact):
    """Four tokens: the block at 0 has three labels, at 1 two, at 2 one, whatever stands behind them."""
    for rows, layout in (([SHORT], "padded"), ([SHORT, 6], "padded"), ([SHORT, 6], "packed")):
        slots = exact.batch(rows, layout).slots
        mine = slots.labelled_NB[slots.document_N == 0]
        assert mine.tolist() == [[0 < slot < 4 - anchor for slot in range(BLOCK)] for anchor in range(3)]


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_blocks_that_see_no_context_give_finite_losses_and_gradients(small_target, store, config, layout):
    """An anchor at position 0 hides every context position; softmax over nothing would be NaN."""
    line = Line(small_target, store, config, torch.float32)
    for rows in ([FROM_THE_START], [FROM_THE_START, 6, UNSUPERVISED]):
        loss, weight, gradient = line.gradient([line.batch(rows, layout)])
        assert loss > 0 and weight > 0
        assert bool(torch.isfinite(gradient).all())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_target_in_half_precision_gives_nearly_the_same_loss(small_target, store, config, dtype):
    """Its features, embedding and head are in half precision, the drafter's weights are not."""
    full = Line(small_target, store, config, torch.float32)
    half = Line(small_target, store, config, torch.float32, dtype)
    batch = half.batch(range(10))
    assert batch.features_TF.dtype == half.head.head_VH.dtype == getattr(torch, dtype)
    expected, found = full.gradient([full.batch(range(10))]), half.gradient([batch])
    assert found[0] == pytest.approx(expected[0], rel=0.02) and found[0] != expected[0]
    assert found[1] == expected[1]
    assert found[2].dtype == torch.float32
    assert (found[2] - expected[2]).norm() < 0.1 * expected[2].norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotary_angles_are_exact_at_position_30_000(dtype):
    """Angles in half precision would be off by whole turns there."""
    size, theta = 16, 10_000.0
    cos, sin = rope(torch.tensor([30_000, 29_999]), size, theta, dtype)
    angle = np.tile(np.outer([30_000, 29_999], theta ** -(np.arange(0, size, 2) / size)), 2)
    assert np.abs(cos[:, 0].double().numpy() - np.cos(angle)).max() < 1e-3
    assert np.abs(sin[:, 0].double().numpy() - np.sin(angle)).max() < 1e-3
