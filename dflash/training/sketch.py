"""Sketches of gradients: a few thousand floats that keep norms and inner products, whatever the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

SKETCH_SIZE = 4093
"""Floats of a sketch. A prime: no width of a layer lines up with it, so no column of a matrix ends in one
float. A squared norm is off by sqrt(2 / 4093) = 2.2 % (one deviation), a cosine by at most 1 / sqrt(4093) =
1.6 %."""

_ROWS_OF_A_CHUNK = 256  # a million coordinates: 4 MB of signs, and as much again while a gradient is read
_SEED = 20_240_717


class GradientSketch:
    """A fixed random linear map of the gradient in ``.grad`` to ``size`` floats.

    A sparse sign projection (Charikar, Chen and Farach-Colton, *Finding frequent items in data streams*,
    2002; for inner products: Weinberger et al., arXiv 0902.2206): coordinate i is added to float i mod
    ``size`` with a random sign. Norms and inner products are unbiased, the variance of <a, b> is about
    (|a|^2 |b|^2 + <a, b>^2) / size. Linear, so sketches are summed, differenced and scaled as gradients are.

    The gradient is read once, a chunk of coordinates at a time. Chunks share one table of signs; each is
    rotated by an amount of its own, so that equal places of two chunks never meet with equal signs. The map
    depends on the sizes of the parameters in their order alone, and is the same on every machine.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], size: int = SKETCH_SIZE) -> None:
        self._parameters = list(parameters)
        self.size = size
        count = sum(weight.numel() for weight in self._parameters)
        device = self._parameters[0].device
        rows = min(_ROWS_OF_A_CHUNK, max(1, -(-count // size)))
        generator = torch.Generator().manual_seed(_SEED)
        drawn = torch.randint(0, 2, (rows, size), generator=generator, dtype=torch.float32)
        self._signs_RK = (2 * drawn - 1).to(device)
        chunks = max(1, -(-count // (rows * size)))
        self._rotations = torch.randint(0, size, (chunks,), generator=generator).tolist()
        self._chunk_RK = torch.zeros(rows, size, device=device)

    @torch.no_grad()
    def __call__(self) -> Tensor:
        """The sketch of what is in ``.grad`` now, float32[size]; a parameter without one counts as zero."""
        sketch_K = torch.zeros(self.size, device=self._chunk_RK.device)
        for rotation, filled in zip(self._rotations, self._chunks(), strict=True):
            signed_RK = self._chunk_RK[:filled] * self._signs_RK[:filled]
            sketch_K += torch.roll(signed_RK.sum(0), rotation)
        return sketch_K

    def _chunks(self) -> Iterator[int]:
        """Fill the chunk again and again; yields how many of its rows are in use."""
        flat = self._chunk_RK.view(-1)
        used = 0
        for weight in self._parameters:
            start, count = 0, weight.numel()
            while start < count:
                take = min(count - start, len(flat) - used)
                piece = flat[used : used + take]
                if weight.grad is None:
                    piece.zero_()
                else:
                    piece.copy_(weight.grad.view(-1)[start : start + take])
                start, used = start + take, used + take
                if used == len(flat):
                    yield len(self._chunk_RK)
                    used = 0
        if used:
            rows = -(-used // self.size)
            flat[used : rows * self.size].zero_()
            yield rows
