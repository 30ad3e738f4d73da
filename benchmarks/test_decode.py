"""Speculative decoding beside plain decoding of the same text: compare ratios, never seconds.

The drafter runs in full, but what it drafts is known to be right for so many slots: what a step costs does
not depend on luck, and the ratio to plain decoding is what a drafter of that accepted length is worth here.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from dflash.config import DrafterSettings
from dflash.data.sample import sample_target_dir
from dflash.models.cached_target import CachedTarget
from dflash.models.decode import DrafterContext, Limits, decode, decode_plainly
from dflash.models.drafter import Drafter
from dflash.models.initialisation import initialise
from dflash.models.sampling import Greedy
from dflash.models.shape import shape_for_target
from dflash.models.target import load_causal_lm, target_head

NEW_TOKENS = 97
"""one from the prompt, and 96 that every accepted length below divides"""
PROMPT = np.arange(100, 164)


class KnownDrafts(DrafterContext):
    """A drafter's whole work, and then the known text, of which ``right`` slots are right."""

    def __init__(self, drafter, head, text, right):
        super().__init__(drafter, head)
        self._text, self._right = text, right

    def draft(self, token):
        logits = super().draft(token)
        slots = self._length + 1 + np.arange(len(logits))
        tokens = torch.from_numpy(self._text[np.minimum(slots, len(self._text) - 1)])
        tokens[self._right :] += 1
        return functional.one_hot(tokens % logits.shape[1], logits.shape[1])


@pytest.fixture(scope="module")
def models():
    torch.set_num_threads(1)
    model = load_causal_lm(sample_target_dir())
    drafter = initialise(Drafter(shape_for_target(sample_target_dir(), DrafterSettings())), model, 0)
    with CachedTarget(model, drafter.shape.target_layer_ids) as target:
        text = decode_plainly(target, PROMPT, Limits(NEW_TOKENS), Greedy())
        yield target, drafter, target_head(model), np.concatenate([PROMPT, text])


@pytest.mark.parametrize("length", [None, 1, 4, 16], ids=lambda n: f"length {n}" if n else "plain (peer)")
def test_decoding(benchmark, models, length):
    benchmark.group = "96 tokens behind a prompt of 64, sample target, blocks of 16"
    target, drafter, head, text = models

    def run():
        if length is None:
            return decode_plainly(target, PROMPT, Limits(NEW_TOKENS), Greedy())
        drafting = KnownDrafts(drafter, head, text, length - 1)
        response = decode(target, drafting, PROMPT, Limits(NEW_TOKENS), Greedy())
        assert set(response.lengths.tolist()) == {length}
        return response.tokens

    tokens = benchmark.pedantic(run, rounds=5, warmup_rounds=1)
    assert tokens.tolist() == text[len(PROMPT) :].tolist()
