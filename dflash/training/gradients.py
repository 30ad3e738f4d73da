"""Gradient diversity of a window: how much its micro-batches pull in different directions."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class GradientDiversity:
    """Yin et al.'s diversity (arXiv 1706.05699, definition 1) over the micro-batches of one window.

    ``sum_i |g_i|^2 / |sum_i g_i|^2``, where g_i is the gradient of micro-batch i's loss sum: 1/n for n
    equal gradients, 1 for orthogonal ones, above 1 where they cancel. Dividing every g_i by the window's
    weight changes nothing, so it is taken before that division. One copy of the gradient is kept.

    Each drafter has one of these for its own micro-batches; their parts add up.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self._before: Tensor | None = None
        self._square_norms: list[Tensor] = []

    def after_micro_batch(self) -> None:
        """Call when a micro-batch's gradient has been added to ``.grad``."""
        now = self._flat()
        own = now if self._before is None else now - self._before
        self._square_norms.append(own.double().square().sum())
        self._before = now

    def finish_window(self) -> float:
        """The sum of the micro-batches' squared norms; begins a new window."""
        parts = sum(norm.item() for norm in self._square_norms)
        self._before, self._square_norms = None, []
        return parts

    def diversity(self, parts: float) -> float | None:
        """The diversity of all drafters' ``parts`` over the gradient in ``.grad``, their sum.

        None where there is no gradient, or where it cancels to nothing.
        """
        total = self._flat().double().square().sum().item()
        return parts / total if total else None

    def _flat(self) -> Tensor:
        return torch.cat(
            [
                (torch.zeros_like(weight) if weight.grad is None else weight.grad).detach().flatten()
                for weight in self._parameters
            ]
        )
