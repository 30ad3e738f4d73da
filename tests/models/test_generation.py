"""Batched continuations are those of one prompt at a time, and what is drawn is the target's distribution."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import SMALL_SIZES
from scipy import stats

from dflash.errors import UsageError
from dflash.models.generation import Continuer, Decoding
from dflash.models.target import load_causal_lm

TIE = 1e-5
"""of logits: rounding may choose either"""


@pytest.fixture(scope="module")
def model(small_target):
    return load_causal_lm(small_target)


@pytest.fixture
def continuer(small_target):
    def make(more_end_ids=(), **decoding):
        return Continuer.load(small_target, Decoding(**{"max_new_tokens": 12, **decoding}), more_end_ids)

    return make


@torch.no_grad()
def one_by_one(model, prompt, new_tokens, end_ids=()):
    """Without cache, padding or mask: the text is read anew for each token. Also the smallest margin."""
    ids, margin = list(prompt), np.inf
    for _ in range(new_tokens):
        (best, second), tokens = model(torch.tensor([ids]), use_cache=False).logits[0, -1].topk(2)
        margin = min(margin, float(best - second))
        ids.append(int(tokens[0]))
        if ids[-1] in end_ids:
            break
    return ids[len(prompt) :], margin


PROMPTS = st.lists(st.lists(st.integers(0, 96), min_size=1, max_size=30), min_size=1, max_size=7)


@settings(max_examples=8)
@given(prompts=PROMPTS, batch_size=st.sampled_from([1, 3, 64]))
def test_greedy_in_batches_is_greedy_one_by_one(model, prompts, batch_size):
    """Prompts of any lengths, so with padding on the left."""
    continuer = Continuer(model, Decoding(max_new_tokens=5, batch_size=batch_size))
    found = continuer(prompts, [(i,) for i in range(len(prompts))])
    for prompt, continuation in zip(prompts, found, strict=True):
        expected, margin = one_by_one(model, prompt, 5, continuer.end_ids)
        assert continuation == expected or margin < TIE


def test_an_end_token_ends_and_is_kept(model, continuer):
    """Of the model's own and of others' making; behind it there is nothing, whatever the batch mates do."""
    prompts = [[7, 8, 9], [5] * 20, [1], [60, 2, 3, 4]]
    endless, _ = zip(*(one_by_one(model, prompt, 12) for prompt in prompts), strict=True)
    ends = {endless[0][3], endless[2][0]}
    found = continuer(ends)(prompts, [(i,) for i in range(4)])
    for whole, continuation in zip(endless, found, strict=True):
        first = next((i for i, token in enumerate(whole) if token in ends), len(whole))
        assert continuation == whole[: first + 1]
    assert len(found[2]) == 1 < len(found[0])


def test_recommendations_of_the_model_change_nothing(small_target, tmp_path, continuer):
    """Servers' penalties and cut-offs are not the distribution that speculative decoding reproduces."""
    folder = tmp_path / "copy"
    shutil.copytree(small_target, folder)
    recommended = {
        "do_sample": True,
        "temperature": 2.0,
        "top_k": 2,
        "repetition_penalty": 5.0,
        "eos_token_id": [3, 4],
    }
    (folder / "generation_config.json").write_text(
        json.dumps({**recommended, "min_new_tokens": 9, "no_repeat_ngram_size": 1, "max_length": 15})
    )
    prompts, keys = [[7, 8, 9], [5] * 20], [(0,), (1,)]
    recommends = Continuer.load(folder, Decoding(12))
    assert recommends.end_ids == {3, 4}
    assert recommends(prompts, keys) == continuer({3, 4})(prompts, keys)


def test_sampling_depends_on_key_and_seed_and_not_on_batch_mates(continuer):
    prompts, keys = [[7, 8, 9], [5] * 20, [1], [60, 2]], [(4, 0), (4, 1), (0, 0), (9, 0)]
    warm = continuer(temperature=1.0, seed=3)
    found = warm(prompts, keys)
    assert found == warm(prompts, keys)
    assert found == [warm([prompt], [key])[0] for prompt, key in zip(prompts, keys, strict=True)]
    assert found[::-1] == continuer(temperature=1.0, seed=3, batch_size=2)(prompts[::-1], keys[::-1])
    assert found != continuer(temperature=1.0, seed=4)(prompts, keys)
    assert found[0] != warm([prompts[0]], [(4, 1)])[0]
    assert continuer(temperature=1e-4)(prompts, keys) == continuer()(prompts, keys)


@pytest.mark.parametrize("temperature", [0.7, 1.5])
@torch.no_grad()
def test_tokens_are_drawn_from_the_targets_softmax(small_target, temperature):
    """The first token, and the second one over all first ones, of 3,000 continuations."""
    model = load_causal_lm(small_target)
    model.lm_head.weight *= 20  # from almost uniform to a few likely tokens
    prompt, count, vocabulary = [7, 8, 9], 3000, 97
    warm = Continuer(model, Decoding(2, temperature, batch_size=count))
    drawn = np.array(warm([prompt] * count, [(i,) for i in range(count)]))

    def probabilities(texts):
        logits = model(torch.tensor(texts), use_cache=False).logits[:, -1].double()
        return (logits / temperature).softmax(-1).numpy()

    first = probabilities([prompt])[0]
    second = first @ probabilities([[*prompt, token] for token in range(vocabulary)])
    assert first.max() > 0.1
    for tokens, expected in [(drawn[:, 0], first * count), (drawn[:, 1], second * count)]:
        observed, rare = np.bincount(tokens, minlength=vocabulary), expected < 5
        assert (~rare).sum() > 10
        pooled = [np.append(each[~rare], each[rare].sum()) for each in (observed, expected)]
        assert stats.chisquare(*pooled).pvalue > 1e-4


@pytest.mark.parametrize("family", ["Llama", "Mistral"])
def test_other_families(family):
    import transformers

    torch.manual_seed(1)
    config = getattr(transformers, f"{family}Config")(**SMALL_SIZES, max_position_embeddings=64)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval().requires_grad_(False)
    prompts = [[3, 4, 5, 6, 7], [9]]
    continuer = Continuer(model, Decoding(5))
    assert continuer.positions == 64
    for prompt, continuation in zip(prompts, continuer(prompts, [(0,), (1,)]), strict=True):
        expected, margin = one_by_one(model, prompt, 5, continuer.end_ids)
        assert continuation == expected or margin < TIE


def test_what_cannot_be_continued(continuer, small_target, tmp_path):
    with pytest.raises(UsageError, match="token id 97 is not in the target's vocabulary of 97"):
        continuer()([[1, 97]], [(0,)])
    with pytest.raises(UsageError, match="no model folder"):
        Continuer.load(tmp_path, Decoding(1))
    for device in ("nonsense", "cuda" if not torch.cuda.is_available() else "cuda:99"):
        with pytest.raises(UsageError, match=f"cannot use the device {device}"):
            Continuer.load(small_target, Decoding(1), device=device)
