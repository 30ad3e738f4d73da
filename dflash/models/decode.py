"""Speculative decoding of one text: the drafter proposes a block, the target verifies it in one forward.

At every step the text ends in a token that the target has chosen but not read, the *anchor*. The drafter,
which knows the features of all tokens before the anchor, fills the B - 1 slots behind it. The target reads
the anchor and the slots at once, keeps those it agrees with, and puts one token of its own behind them: the
next anchor. What it read in vain is cropped from its cache. Source: arXiv 2602.06036, section 4.

Hooks, cache, positions and attention are decoding's own and share no code with training, so that a feature,
a position or a mask that training gets wrong shows as a decoded length that is not the trained one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from dflash.models.cached_target import CachedTarget
from dflash.models.drafter import Context, Drafter, TargetHead
from dflash.models.loss import target_logits
from dflash.models.sampling import Rule

Int64 = NDArray[np.int64]


class Drafting(Protocol):
    """A drafter in the course of one text."""

    def read(self, features_SF: Tensor) -> None:
        """Take in the features of the S tokens that the text has grown by."""

    def draft(self, token: int) -> Tensor:
        """Logits [B - 1, V] of the slots behind ``token``, the anchor, which follows all tokens read."""


class DrafterContext:
    """A drafter with the keys and values of one text's context.

    Only features of tokens that the target has kept are ever read, and a block's own keys and values live for
    one draft, so nothing has to be cropped.
    """

    def __init__(self, drafter: Drafter, head: TargetHead) -> None:
        self._drafter = drafter
        self._head = head
        self._length = 0
        self._pairs: list[tuple[Tensor, Tensor]] = []

    @torch.no_grad()
    def read(self, features_SF: Tensor) -> None:
        count = len(features_SF)
        new = self._drafter.encode(features_SF, np.array([0, count]), first_position=self._length).pairs
        old = self._pairs or [(key[:0], value[:0]) for key, value in new]
        self._pairs = [
            (torch.cat([key, more_keys]), torch.cat([value, more_values]))
            for (key, value), (more_keys, more_values) in zip(old, new, strict=True)
        ]
        self._length += count

    @torch.no_grad()
    def draft(self, token: int) -> Tensor:
        device = self._head.head_VH.device
        hidden_1BH = self._drafter.draft(
            Context(self._pairs, np.array([0, self._length])),
            _attend_to_all,
            torch.tensor([self._length], device=device),
            torch.tensor([token], device=device),
            self._head,
        )
        return target_logits(hidden_1BH[0, 1:], self._head.head_VH)


def _attend_to_all(
    q_NBHD: Tensor, context_key_TGD: Tensor, context_value_TGD: Tensor, key_NBGD: Tensor, value_NBGD: Tensor
) -> Tensor:
    """One block (N = 1), and no position of its context that it must not see: attention without a mask."""
    key_NGSD, value_NGSD = (
        torch.cat([context, own[0]])[None].transpose(1, 2)
        for context, own in ((context_key_TGD, key_NBGD), (context_value_TGD, value_NBGD))
    )
    out_NHBD = functional.scaled_dot_product_attention(
        q_NBHD.transpose(1, 2), key_NGSD, value_NGSD, enable_gqa=True
    )
    return out_NHBD.transpose(1, 2)


@dataclass(frozen=True)
class Limits:
    """Where a text ends: behind the first of the end tokens, or after so many new ones (at least one)."""

    new_tokens: int
    end_ids: frozenset[int] = frozenset()

    def cut(self, tokens: list[int], already: int) -> tuple[list[int], bool]:
        """The part of ``tokens`` that still belongs to a text of ``already`` new ones; whether it ends it."""
        room = self.new_tokens - already
        for index, token in enumerate(tokens[:room]):
            if token in self.end_ids:
                return tokens[: index + 1], True
        return tokens[:room], len(tokens) >= room


@dataclass(frozen=True)
class Response:
    """A decoded text and how it came about."""

    prompt: Int64
    """int64[P]"""
    tokens: Int64
    """int64[n]: the new ones; the first comes from reading the prompt"""
    lengths: Int64
    """int64[v]: how many of them each verification added; their sum is n - 1"""

    @property
    def text(self) -> Int64:
        """int64[P + n]"""
        return np.concatenate([self.prompt, self.tokens])

    @property
    def anchors(self) -> Int64:
        """int64[v]: the position in the text of each verification's anchor."""
        return len(self.prompt) + np.cumsum(self.lengths) - self.lengths


def decode(target: CachedTarget, drafting: Drafting, prompt: Int64, limits: Limits, rule: Rule) -> Response:
    """Decode behind ``prompt`` (int64[P], P >= 1), a block for every forward of the target.

    The text is what the target alone would give under ``rule``: token for token when greedy (up to ties of
    logits that rounding decides), in distribution when sampled.
    """
    target.restart()
    logits, features = target.read(torch.from_numpy(prompt).to(target.device), logits=1)
    drafting.read(features)
    anchor = rule.choose(logits[-1])
    tokens, ended = limits.cut([anchor], 0)
    lengths: list[int] = []
    while not ended:
        draft_KV = drafting.draft(anchor)
        token_K = rule.draft(draft_KV)
        block_B = torch.cat([token_K.new_tensor([anchor]), token_K])
        target_BV, features = target.read(block_B, logits=len(block_B))
        kept, anchor = rule.verify(token_K, draft_KV, target_BV)
        target.take_back(len(token_K) - kept)
        drafting.read(features[: kept + 1])
        new, ended = limits.cut([*token_K[:kept].tolist(), anchor], len(tokens))
        tokens += new
        lengths.append(len(new))
    return Response(prompt, np.array(tokens, np.int64), np.array(lengths, np.int64))


def decode_plainly(target: CachedTarget, prompt: Int64, limits: Limits, rule: Rule) -> Int64:
    """int64[n]: the new tokens of the target alone, one forward for each."""
    target.restart()
    unread = torch.from_numpy(prompt).to(target.device)
    tokens: list[int] = []
    ended = False
    while not ended:
        logits, _ = target.read(unread, logits=1)
        unread = logits.new_tensor([rule.choose(logits[-1])], dtype=torch.int64)
        new, ended = limits.cut(unread.tolist(), len(tokens))
        tokens += new
    return np.array(tokens, np.int64)
