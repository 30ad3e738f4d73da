"""Which tokens are drafted, and which of them the target keeps: greedily, or by rejection sampling.

Both rules are lossless: what is kept is the target's own greedy text, or a draw from the target's own
distribution, however bad the drafter is. A bad drafter only costs speed.

Shapes: K = B - 1 drafted tokens, vocabulary V; the target's logits [B, V] stand at the anchor and at every
drafted token, so row k judges drafted token k and the last row follows all of them.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Rule(Protocol):
    """How tokens are chosen from logits."""

    def choose(self, logits_V: Tensor) -> int:
        """The target's next token, without a draft."""

    def draft(self, logits_KV: Tensor) -> Tensor:
        """int64[K]: one token for each slot, from the drafter's logits."""

    def verify(self, token_K: Tensor, draft_KV: Tensor, target_BV: Tensor) -> tuple[int, int]:
        """How many of the drafted tokens are kept, and the token that the target puts behind them."""


class Greedy:
    """The most likely token, everywhere."""

    def choose(self, logits_V: Tensor) -> int:
        return int(logits_V.argmax())

    def draft(self, logits_KV: Tensor) -> Tensor:
        return logits_KV.argmax(-1)

    def verify(self, token_K: Tensor, draft_KV: Tensor, target_BV: Tensor) -> tuple[int, int]:
        own_B = target_BV.argmax(-1)
        kept = _leading(token_K == own_B[:-1])
        return kept, int(own_B[kept])


class RejectionSampling:
    """Speculative sampling at a temperature, from a generator of its own.

    Drafted token x of slot k, drawn from the drafter's q_k, is kept with probability min(1, p_k(x) / q_k(x));
    the first one that is not is replaced by a draw from the normalised positive part of p_k - q_k. A block's
    slots are drawn independently of each other, so q_k needs no conditioning on the tokens kept before it.
    Source: Leviathan et al. (arXiv 2211.17192), section 2.3 and appendix A.1.
    """

    def __init__(self, temperature: float, generator: torch.Generator) -> None:
        self._temperature = temperature
        self._generator = generator

    def choose(self, logits_V: Tensor) -> int:
        return int(self._draw(self._probabilities(logits_V)))

    def draft(self, logits_KV: Tensor) -> Tensor:
        return self._draw(self._probabilities(logits_KV)).squeeze(-1)

    def verify(self, token_K: Tensor, draft_KV: Tensor, target_BV: Tensor) -> tuple[int, int]:
        p_BV, q_KV = self._probabilities(target_BV), self._probabilities(draft_KV)
        p_K, q_K = (each.gather(-1, token_K[:, None]).squeeze(-1) for each in (p_BV[:-1], q_KV))
        u_K = torch.rand(len(token_K), dtype=torch.float64, device=token_K.device, generator=self._generator)
        kept = _leading(u_K * q_K < p_K)
        if kept == len(token_K):
            return kept, int(self._draw(p_BV[-1]))
        return kept, int(self._draw((p_BV[kept] - q_KV[kept]).clamp(min=0)))

    def _probabilities(self, logits: Tensor) -> Tensor:
        # In fp64: the difference of two almost equal distributions is all that a residual is made of.
        return (logits.double() / self._temperature).softmax(-1)

    def _draw(self, weights: Tensor) -> Tensor:
        return torch.multinomial(weights, 1, generator=self._generator)


def _leading(flags_K: Tensor) -> int:
    """How many flags are set before the first that is not."""
    return int(flags_K.long().cumprod(0).sum())
