"""How the gradients of a window's micro-batches relate, from their sketches."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dflash.training.sketch import GradientSketch

FloatArray = NDArray[np.float32] | NDArray[np.float64]


class MicroBatchGradients:
    """The sketch of each micro-batch's own gradient while they add up in ``.grad``.

    Each drafter has one for its own micro-batches; the sketches of all drafters are one window's. Dividing
    every gradient by the window's weight changes no diversity and no cosine, so it is not done.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._sketch = GradientSketch(parameters)
        self._before: Tensor | None = None
        self._own: list[Tensor] = []

    def after_micro_batch(self) -> None:
        """Call when a micro-batch's gradient has been added to ``.grad``."""
        now = self._sketch()
        self._own.append(now if self._before is None else now - self._before)
        self._before = now

    def finish_window(self) -> NDArray[np.float32]:
        """Sketches float32[n, K] of the window's n micro-batches; begins a new window."""
        own, self._before, self._own = self._own, None, []
        if not own:
            return np.zeros((0, self._sketch.size), np.float32)
        found: NDArray[np.float32] = torch.stack(own).cpu().numpy()
        return found


def diversity(gradients_nK: FloatArray) -> float | None:
    """Yin et al.'s gradient diversity (arXiv 1706.05699, definition 1): sum_i |g_i|^2 / |sum_i g_i|^2.

    1/n for n equal gradients, 1 for orthogonal ones, above 1 where they cancel. None where there is no
    gradient, or where the gradients cancel to nothing.
    """
    g = gradients_nK.astype(np.float64)
    parts, total = float(np.square(g).sum()), float(np.square(g.sum(0)).sum())
    # Sketches of gradients that cancel differ from zero by the rounding of the sums they were read from.
    return parts / total if total > 1e-12 * parts else None


def mean_cosine(gradients_nK: FloatArray) -> float | None:
    """Mean cosine over the pairs of n gradients, float[n, K]; zero gradients are left out, None below two."""
    g = gradients_nK.astype(np.float64)
    norms = np.linalg.norm(g, axis=1)
    n = int((norms > 0).sum())
    if n < 2:
        return None
    units = g[norms > 0] / norms[norms > 0, None]
    return float((np.square(units.sum(0)).sum() - n) / (n * (n - 1)))


def noise_scale(gradients_WnK: FloatArray, tokens_Wn: FloatArray) -> float | None:
    """The simple gradient noise scale tr(S) / |G|^2, in tokens (McCandlish et al., arXiv 1812.06162, A.1).

    ``gradients_WnK`` are mean gradients of the n micro-batches of W windows, ``tokens_Wn`` their sizes. The
    estimates of |G|^2 and tr(S) are averaged over windows before they are divided. Holds only where
    micro-batches are exchangeable: those of one window must be as independent as those of two. None where the
    estimate of |G|^2 is not above zero: the gradient is lost in its noise.
    """
    g, tokens = gradients_WnK.astype(np.float64), tokens_Wn.astype(np.float64)
    big_W = tokens.sum(1)
    small_W = 1 / (1 / tokens).mean(1)
    mean_WK = (g * tokens[..., None]).sum(1) / big_W[:, None]
    small_norm_W = np.square(g).sum(2).mean(1)
    big_norm_W = np.square(mean_WK).sum(1)
    signal_W = (big_W * big_norm_W - small_W * small_norm_W) / (big_W - small_W)
    noise_W = (small_norm_W - big_norm_W) / (1 / small_W - 1 / big_W)
    signal, noise = float(signal_W.mean()), float(noise_W.mean())
    return noise / signal if signal > 0 else None
