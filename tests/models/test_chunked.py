from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from dflash.models.chunked import sum_over_chunks, whole_blocks


@given(st.lists(st.integers(0, 7), max_size=20), st.integers(1, 20))
def test_chunks_are_whole_blocks_of_at_most_so_many_labels(counts, most):
    labelled = np.arange(7) < np.array(counts, dtype=int).reshape(-1, 1)
    chunks = whole_blocks(labelled, most)
    blocks = [n for chunk in chunks for n in range(chunk.blocks.start, chunk.blocks.stop)]
    assert blocks == list(range(len(counts)))
    done = 0
    for chunk in chunks:
        mine = counts[chunk.blocks]
        assert (chunk.labels.start, chunk.labels.stop) == (done, done + sum(mine))
        done += sum(mine)
        assert sum(mine) <= most or len(mine) == 1
    for one, other in pairwise(chunks):
        assert sum(counts[one.blocks]) + counts[other.blocks.start] > most, "it could have held one more"


def test_a_trained_head_and_a_second_loss_get_their_gradient():
    """As an objective needs them that corrects the target's logits and predicts its own confidence."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    labels, width, vocabulary = 30, 6, 17
    hidden, confidence = random(labels, width).requires_grad_(), random(width).requires_grad_()
    down, up = random(width, 2).requires_grad_(), random(2, vocabulary).requires_grad_()
    head, label = random(width, vocabulary), torch.randint(vocabulary, (labels,), generator=generator)
    trained = [hidden, down, up, confidence]

    def loss_of(h, its_label):
        logits = h @ head + h @ down @ up
        sure = functional.binary_cross_entropy_with_logits(
            h @ confidence, (logits.argmax(-1) == its_label).double(), reduction="sum"
        )
        return 0.1 * functional.cross_entropy(logits, its_label, reduction="sum") + sure

    expected = loss_of(hidden, label)
    (2 * expected).backward()
    gradients = [tensor.grad for tensor in trained]
    for tensor in trained:
        tensor.grad = None

    chunks = whole_blocks(np.ones((10, 3), dtype=bool), 7)
    assert len(chunks) == 5
    total = sum_over_chunks(lambda h, chunk: loss_of(h, label[chunk.labels]), hidden, chunks, trained[1:])
    (2 * total).backward()
    torch.testing.assert_close(total, expected.detach())
    for tensor, gradient in zip(trained, gradients, strict=True):
        torch.testing.assert_close(tensor.grad, gradient)
