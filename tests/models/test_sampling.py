from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dflash.models.sampling import Greedy, RejectionSampling

VOCABULARY = 3
TIMES = 4_000


def tables(seed):
    """The target's p(x1) and p(x2 | x1), and the drafter's q1 and q2, as logits that disagree a lot."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (VOCABULARY,), (VOCABULARY, VOCABULARY), (2, VOCABULARY)
    return [1.5 * torch.randn(shape, generator=generator) for shape in shapes]


def pairs(rule, first_V, second_VV, draft_KV):
    """Counts [V, V] of the first two tokens of many texts, from blocks of two drafted tokens."""
    counts = np.zeros((VOCABULARY, VOCABULARY), int)
    for _ in range(TIMES):
        token_K = rule.draft(draft_KV)
        target_BV = torch.stack([first_V, second_VV[token_K[0]], first_V])
        kept, token = rule.verify(token_K, draft_KV, target_BV)
        text = [*token_K[:kept].tolist(), token]
        if kept == 0:
            text.append(rule.choose(second_VV[token]))
        counts[text[0], text[1]] += 1
    return counts


def fit(counts, first_V, second_VV, temperature):
    first, second = ((logits.double() / temperature).softmax(-1) for logits in (first_V, second_VV))
    expected = (first[:, None] * second).numpy() * TIMES
    return stats.chisquare(counts.ravel(), expected.ravel()).pvalue


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_two_sampled_tokens_have_the_targets_joint_distribution(temperature):
    first_V, second_VV, draft_KV = tables(0)
    rule = RejectionSampling(temperature, torch.Generator().manual_seed(0))
    assert fit(pairs(rule, first_V, second_VV, draft_KV), first_V, second_VV, temperature) > 0.01


def test_drawing_from_the_target_in_place_of_the_residual_would_show():
    """A mistake that is easily made, and that the test above must see."""

    class Careless(RejectionSampling):
        def verify(self, token_K, draft_KV, target_BV):
            kept, _ = super().verify(token_K, draft_KV, target_BV)
            return kept, self.choose(target_BV[kept])

    first_V, second_VV, draft_KV = tables(0)
    rule = Careless(1.0, torch.Generator().manual_seed(0))
    assert fit(pairs(rule, first_V, second_VV, draft_KV), first_V, second_VV, 1.0) < 1e-9


def test_a_draft_is_kept_as_often_as_the_distributions_overlap():
    """sum of min(p, q), whatever is drafted."""
    first_V, second_VV, draft_KV = tables(1)
    rule = RejectionSampling(1.0, torch.Generator().manual_seed(0))
    target_BV = torch.stack([first_V, second_VV[0], first_V])
    kept = sum(rule.verify(rule.draft(draft_KV), draft_KV, target_BV)[0] > 0 for _ in range(TIMES))
    overlap = torch.minimum(first_V.softmax(-1), draft_KV[0].softmax(-1)).sum().item()
    assert stats.binomtest(kept, TIMES, overlap).pvalue > 0.01


def test_a_drafter_with_the_targets_distribution_is_always_kept():
    logits = torch.randn(7, 50, generator=torch.Generator().manual_seed(0))
    rule = RejectionSampling(1.0, torch.Generator().manual_seed(0))
    assert all(rule.verify(rule.draft(logits[:-1]), logits[:-1], logits)[0] == 6 for _ in range(200))


def test_what_the_target_excludes_is_never_kept():
    target = torch.tensor([[0.0, -torch.inf, 0.0]]).expand(3, 3)
    draft = torch.tensor([[-torch.inf, 0.0, -torch.inf]]).expand(2, 3)
    rule = RejectionSampling(1.0, torch.Generator().manual_seed(0))
    found = {rule.verify(rule.draft(draft), draft, target) for _ in range(100)}
    assert found == {(0, 0), (0, 2)}


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=9), st.integers(0, 2))
def test_greedy_keeps_the_longest_agreeing_prefix_and_adds_the_targets_token(slots, last):
    drafted, own = map(list, zip(*slots, strict=True))
    own.append(last)
    expected = 0
    while expected < len(drafted) and drafted[expected] == own[expected]:
        expected += 1
    one_hot = torch.eye(3)
    rule = Greedy()
    token_K = rule.draft(one_hot[drafted])
    assert token_K.tolist() == drafted
    assert rule.verify(token_K, one_hot[drafted], one_hot[own]) == (expected, own[expected])
