"""A sum over labels, computed chunk by chunk with its gradient, so that no chunk's logits outlive it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Chunk:
    """Consecutive whole blocks, and which of all labels are theirs."""

    blocks: slice
    labels: slice


LossOfChunk = Callable[[Tensor, Chunk], Tensor]


def whole_blocks(labelled_NB: NDArray[np.bool_], most: int) -> list[Chunk]:
    """Cut N blocks into chunks of at most ``most`` labels, or of one block with more.

    Whole blocks, because the weight of a label may depend on the other slots of its block.
    """
    end_N = np.cumsum(labelled_NB.sum(1))
    chunks: list[Chunk] = []
    first, done = 0, 0
    while first < len(end_N):
        last = max(first + 1, int(np.searchsorted(end_N, done + most, side="right")))
        end = int(end_N[last - 1])
        chunks.append(Chunk(slice(first, last), slice(done, end)))
        first, done = last, end
    return chunks


def sum_over_chunks(
    loss_of_chunk: LossOfChunk, hidden_LH: Tensor, chunks: Sequence[Chunk], parameters: Sequence[Tensor] = ()
) -> Tensor:
    """Sum of ``loss_of_chunk(hidden_LH[chunk.labels], chunk)``, a float64 scalar.

    Differentiable once. A chunk's gradient is taken as soon as its loss is known, and scaled when the
    caller's backward pass comes; then the chunk's graph is freed. Without gradient nothing is kept at all.

    Args:
        loss_of_chunk: gives a float64 scalar; it may keep other results for its caller.
        hidden_LH: [L, H], the hidden states of all labels.
        parameters: trained weights that ``loss_of_chunk`` uses, such as those of a head of its own.
    """
    return _ChunkedSum.apply(hidden_LH, loss_of_chunk, chunks, *parameters)  # type: ignore[no-untyped-call, no-any-return]


class _ChunkedSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_LH: Tensor, loss_of_chunk: LossOfChunk, chunks: Sequence[Chunk], *parameters: Tensor
    ) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=hidden_LH.device)
        wanted = any(ctx.needs_input_grad)
        grads = [torch.zeros_like(tensor) for tensor in (hidden_LH, *parameters)] if wanted else []
        for chunk in chunks:
            hidden = hidden_LH[chunk.labels].detach()
            if not wanted:
                total += loss_of_chunk(hidden, chunk)
                continue
            with torch.enable_grad():
                loss = loss_of_chunk(hidden.requires_grad_(), chunk)
            grad, *others = torch.autograd.grad(loss, (hidden, *parameters))
            grads[0][chunk.labels] = grad
            for collected, other in zip(grads[1:], others, strict=True):
                collected += other
            total += loss.detach()
        ctx.save_for_backward(*grads)
        return total

    @staticmethod
    def backward(ctx: Any, *scale: Tensor) -> tuple[Tensor | None, ...]:
        hidden, *others = (grad * scale[0].to(grad.dtype) for grad in ctx.saved_tensors)
        return hidden, None, None, *others
