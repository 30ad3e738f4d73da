from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dflash.models.loss import CrossEntropy, target_logits, token_cross_entropy
from dflash.models.position_weights import ExponentialDecay

DECAY = ExponentialDecay(3.0)


def random_blocks(blocks, block, width, vocabulary, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    rng = np.random.default_rng(seed)
    hidden = torch.randn(blocks, block, width, generator=generator, dtype=dtype, requires_grad=True)
    head = torch.randn(vocabulary, width, generator=generator, dtype=dtype)
    return hidden, rng.integers(0, vocabulary, (blocks, block)), rng.random((blocks, block)) < 0.7, head


def softcapped(hidden, head):
    """A head of another kind: no logit beyond 2."""
    return 2 * torch.tanh(target_logits(hidden, head) / 2)


@pytest.mark.parametrize("head_of", [target_logits, softcapped])
@settings(max_examples=40)
@given(st.integers(0, 9), st.integers(1, 6), st.integers(1, 50), st.integers(0, 2**31))
def test_equals_dense_autograd_in_value_and_gradient_for_any_chunk(head_of, blocks, block, chunk, seed):
    hidden, label, labelled, head = random_blocks(blocks, block, 7, 23, seed)
    sums = CrossEntropy(DECAY, head_of, chunk)(hidden, label, labelled, head)
    (3 * sums.loss).backward()
    found, hidden.grad = hidden.grad, None

    logits = head_of(hidden, head)
    weight = torch.from_numpy(labelled * np.exp((1 - np.arange(block)) / 3.0))
    losses = functional.cross_entropy(
        logits.flatten(0, 1), torch.from_numpy(label).flatten(), reduction="none"
    )
    expected = (losses.view(blocks, block) * weight).sum()
    (3 * expected).backward()
    torch.testing.assert_close(sums.loss, expected.detach(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found, hidden.grad, rtol=1e-6, atol=1e-9)
    assert sums.weight.item() == pytest.approx(weight.sum().item())
    assert sums.hit_NB.tolist() == ((logits.argmax(-1).numpy() == label) & labelled).tolist()

    with torch.no_grad():
        again = CrossEntropy(DECAY, head_of, chunk)(hidden, label, labelled, head)
    assert again.loss.item() == sums.loss.item() and torch.equal(again.hit_NB, sums.hit_NB)


def test_half_precision_is_summed_in_single_precision():
    """Logits of 8 bits of mantissa would quantise the loss; the product may be half, the loss may not."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(300, 99, generator=generator).bfloat16() * 20
    label = torch.randint(99, (300,), generator=generator)
    losses, _ = token_cross_entropy(logits, label)
    assert losses.dtype == torch.float32
    expected = functional.cross_entropy(logits.double(), label, reduction="none")
    torch.testing.assert_close(losses.double(), expected, rtol=1e-6, atol=1e-6)


def test_certain_and_hopeless_labels_have_finite_losses():
    """Probabilities of e^-500 are zero in fp32; their logarithm is not minus infinity."""
    logits = torch.tensor([[500.0, 0.0, -500.0]]).repeat(3, 1).requires_grad_()
    losses, hits = token_cross_entropy(logits, torch.tensor([0, 1, 2]))
    assert losses.tolist() == [0.0, 500.0, 1000.0]
    assert hits.tolist() == [True, False, False]
    losses.sum().backward()
    assert logits.grad.tolist() == [[0.0, 0.0, 0.0], [1.0, -1.0, 0.0], [1.0, 0.0, -1.0]]


class VocabularyMemory(TorchDispatchMode):
    """Most bytes that tensors with an axis as long as the vocabulary hold at one time."""

    def __init__(self, vocabulary):
        super().__init__()
        self._vocabulary = vocabulary
        self._live = {}
        self.peak = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        out = function(*arguments, **(keywords or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and self._vocabulary in tensor.shape:
                storage = tensor.untyped_storage()
                if storage._cdata not in self._live:
                    self._live[storage._cdata] = storage.nbytes()
                    weakref.finalize(storage, self._live.pop, storage._cdata)
        self.peak = max(self.peak, sum(self._live.values()))
        return out


@pytest.mark.parametrize("gradient", [True, False])
def test_memory_of_logits_is_bounded_by_the_chunk(gradient):
    vocabulary, chunk = 1_009, 16
    of_a_chunk = chunk * vocabulary * 4

    def peak(blocks, run):
        hidden, label, labelled, head = random_blocks(blocks, 8, 6, vocabulary, 0, torch.float32)
        hidden.requires_grad_(gradient)

        def forward_and_backward():
            loss = run(hidden, label, labelled, head)
            if gradient:
                loss.backward()

        with VocabularyMemory(vocabulary) as memory:
            forward_and_backward()
        return memory.peak - head.nbytes  # which the product sees through a view

    def chunked(*arguments):
        return CrossEntropy(DECAY, rows_per_chunk=chunk)(*arguments).loss

    def dense(hidden, label, labelled, head):
        logits = target_logits(hidden.flatten(0, 1), head)
        return functional.cross_entropy(logits, torch.from_numpy(label).flatten())

    assert 0 < peak(100, chunked) <= 2 * of_a_chunk, "logits and their probabilities"
    assert peak(100, dense) >= 2 * 800 * vocabulary * 4, "the measure sees what is materialised"
