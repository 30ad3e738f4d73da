from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from dflash.models.loss import weighted_cross_entropy


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(1, 50), st.integers(0, 2**31))
def test_equals_torch_in_value_and_gradient_for_any_chunk(labels, chunk, seed):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(labels, 7, generator=generator, dtype=torch.float64, requires_grad=True)
    head = torch.randn(23, 7, generator=generator, dtype=torch.float64)
    label = torch.randint(23, (labels,), generator=generator)
    weight = torch.rand(labels, generator=generator, dtype=torch.float64)

    total, losses, hits = weighted_cross_entropy(hidden, head, label, weight, chunk)
    (3 * total).backward()
    found = hidden.grad.clone()

    hidden.grad = None
    logits = hidden @ head.T
    expected = functional.cross_entropy(logits, label, reduction="none")
    (3 * (expected * weight).sum()).backward()

    torch.testing.assert_close(losses, expected.detach())
    torch.testing.assert_close(total, (expected * weight).sum().detach())
    torch.testing.assert_close(found, hidden.grad)
    assert hits.tolist() == (logits.argmax(-1) == label).tolist()


def test_half_precision_is_summed_in_single_precision():
    """Logits of 8 bits of mantissa would quantise the loss; the product may be half, the loss may not."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(300, 16, generator=generator).bfloat16()
    head = torch.randn(99, 16, generator=generator).bfloat16()
    label = torch.randint(99, (300,), generator=generator)
    total, losses, _ = weighted_cross_entropy(hidden, head, label, torch.ones(300))
    assert losses.dtype == torch.float32
    assert total.dtype == torch.float64
    expected = functional.cross_entropy((hidden @ head.T).float(), label, reduction="sum")
    torch.testing.assert_close(total.float(), expected)
