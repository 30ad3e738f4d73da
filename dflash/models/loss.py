"""Weighted cross-entropy of drafted tokens, in fp32 and in chunks, always as sums.

Sums, because the loss of a window is one division at its end: (sum of weighted losses) / (sum of
weights). A mean here would make the objective depend on how the window was cut into micro-batches.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ROWS_PER_CHUNK = 512
"""Labels whose logits exist at one time: 311 MB of fp32 for a vocabulary of 151,936, 4 MB for 2,048."""


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Computes the gradient beside the loss, so no chunk's logits outlive it.

    The head is frozen, so only the gradient of the hidden states is needed.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_LH: Tensor, head_VH: Tensor, label_L: Tensor, weight_L: Tensor, chunk: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        exact = torch.promote_types(hidden_LH.dtype, torch.float32)
        losses = torch.empty(len(label_L), dtype=exact, device=hidden_LH.device)
        hits = torch.empty(len(label_L), dtype=torch.bool, device=hidden_LH.device)
        grad = torch.empty_like(hidden_LH)
        for start in range(0, len(label_L), chunk):
            rows = slice(start, start + chunk)
            label = label_L[rows, None]
            log_p = (hidden_LH[rows] @ head_VH.T).to(exact).log_softmax(-1)
            losses[rows] = -log_p.gather(-1, label).squeeze(-1)
            hits[rows] = log_p.argmax(-1) == label.squeeze(-1)
            residual = log_p.exp_()
            residual.scatter_add_(-1, label, torch.full_like(label, -1, dtype=exact))
            residual *= weight_L[rows, None]
            grad[rows] = residual.to(head_VH.dtype) @ head_VH
        ctx.save_for_backward(grad)
        total = (losses.double() * weight_L.double()).sum()
        ctx.mark_non_differentiable(losses, hits)
        return total, losses, hits

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = ctx.saved_tensors
        return grad * grads[0].to(grad.dtype), None, None, None, None


def weighted_cross_entropy(
    hidden_LH: Tensor, head_VH: Tensor, label_L: Tensor, weight_L: Tensor, chunk: int = ROWS_PER_CHUNK
) -> tuple[Tensor, Tensor, Tensor]:
    """Sum of ``weight * cross_entropy(hidden @ head.T, label)`` over L labels.

    Returns:
        total: float64 scalar, differentiable in ``hidden_LH``.
        losses: [L] in fp32 or better, unweighted, for reports.
        hits: bool[L], whether the most likely token is the label.
    """
    return _ChunkedCrossEntropy.apply(hidden_LH, head_VH, label_L, weight_L, chunk)  # type: ignore[no-untyped-call, no-any-return]
