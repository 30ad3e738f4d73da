"""The parts of a layer, with their precision: products in the compute dtype, all else in fp32 or better."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Linear(nn.Linear):
    """A product without a bias in ``compute_dtype``; None: in the weight's own.

    The cast is part of the graph, so the gradient arrives in the dtype that the weight is kept in.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)
        self.compute_dtype: torch.dtype | None = None

    def forward(self, x: Tensor) -> Tensor:
        dtype = self.compute_dtype or self.weight.dtype
        return functional.linear(x.to(dtype), self.weight.to(dtype))


class RMSNorm(nn.RMSNorm):
    """In fp32 or better, and so is what it returns, whatever the dtypes of input and weight."""

    def forward(self, x: Tensor) -> Tensor:
        exact = torch.promote_types(x.dtype, torch.float32)
        return functional.rms_norm(x.to(exact), self.normalized_shape, self.weight.to(exact), self.eps)


def rope(positions: Tensor, size: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines [..., 1, D] of the angles ``position * theta ** (-2 i / D)``, in fp32 or better.

    They are computed anew, not kept as a buffer that ``module.to(bfloat16)`` would round: half precision
    is off by whole turns at long positions.
    """
    exact = torch.promote_types(dtype, torch.float32)
    exponent = torch.arange(0, size, 2, dtype=exact, device=positions.device) / size
    angle = positions.to(exact)[..., None] * theta**-exponent
    angle = torch.cat([angle, angle], dim=-1)[..., None, :]
    return angle.cos(), angle.sin()


def rotate(x_xhD: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary position embedding, halves convention (as Qwen3 and Llama in transformers)."""
    cos, sin = turn
    first, second = x_xhD.chunk(2, dim=-1)
    return x_xhD * cos + torch.cat([-second, first], dim=-1) * sin
