from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
import torch
import transformers
from decoding import FAMILIES, KnownDrafts, drafter_for, generate, prompts, random_target
from oracles import dense_hidden
from scipy import stats

from dflash.errors import NonFiniteError, UsageError
from dflash.models.anchors import build_slots
from dflash.models.cached_target import CachedTarget, end_ids
from dflash.models.decode import DrafterContext, Limits, decode, decode_plainly
from dflash.models.sampling import Greedy, RejectionSampling
from dflash.models.target import target_head


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return random_target(request.param)


@pytest.fixture(scope="module")
def qwen():
    return random_target("Qwen3")


def spoilt(drafter):
    """Every draft of it is a guess."""
    with torch.no_grad():
        drafter.fc.weight.normal_(std=10.0)
    return drafter


@pytest.mark.parametrize("change", [lambda drafter: drafter, spoilt], ids=["fresh", "spoilt"])
def test_greedy_text_is_that_of_transformers(family, change):
    """Of every family, however good the drafter is; with a window, beyond the window's width."""
    drafter, head = change(drafter_for(family)), target_head(family)
    with CachedTarget(family, drafter.shape.target_layer_ids) as target:
        for prompt in prompts(family, 3):
            response = decode(target, DrafterContext(drafter, head), prompt, Limits(24), Greedy())
            assert response.tokens.tolist() == generate(family, prompt, 24).tolist()
            assert response.tokens.tolist() == decode_plainly(target, prompt, Limits(24), Greedy()).tolist()
            assert response.lengths.sum() == 24 - 1
            assert response.text.tolist() == [*prompt.tolist(), *response.tokens.tolist()]


@pytest.mark.parametrize("right", range(8))
def test_lengths_of_known_drafts_are_known(qwen, right):
    """An oracle of B - 1 slots is given B tokens a verification; a drafter that is always wrong, one."""
    prompt, verifications = np.array([3, 14, 15, 92]), 3
    new = 1 + verifications * (right + 1)
    text = np.concatenate([prompt, generate(qwen, prompt, new + 8)])
    with CachedTarget(qwen, (1,)) as target:
        drafts = KnownDrafts(text, 8, 97, right)
        response = decode(target, drafts, prompt, Limits(new), Greedy())
    assert response.lengths.tolist() == [right + 1] * verifications
    assert response.anchors.tolist() == [4 + i * (right + 1) for i in range(verifications)]
    assert response.tokens.tolist() == text[4 : 4 + new].tolist()


def test_the_caches_hold_what_stands_before_the_anchor(qwen):
    """At each draft, however many slots the last verification kept."""
    drafter, prompt = drafter_for(qwen), np.array([3, 14, 15])
    text = np.concatenate([prompt, generate(qwen, prompt, 60)])
    with CachedTarget(qwen, drafter.shape.target_layer_ids) as target:
        seen = []

        class Watched(DrafterContext):
            """A real drafter's state, with drafts of which 0, 1, 2 ... slots are right in turn."""

            def draft(self, token):
                assert super().draft(token).shape == (7, 97)
                seen.append((target.length, self._length, *{len(key) for key, _ in self._pairs}))
                drafts = KnownDrafts(text, 8, 97, right=(len(seen) - 1) % 8)
                drafts.known = self._length
                return drafts.draft(token)

        response = decode(target, Watched(drafter, target_head(qwen)), prompt, Limits(1 + 36), Greedy())
    assert response.lengths.tolist() == list(range(1, 9))
    assert seen == [(anchor, anchor, anchor) for anchor in response.anchors.tolist()]


def test_a_text_ends_behind_its_end_token(qwen):
    """Also when the end token is drafted and more tokens behind it are right."""
    prompt = np.array([3, 14, 15, 92])
    plain = generate(qwen, prompt, 30)
    text = np.concatenate([prompt, plain])
    with CachedTarget(qwen, (1,)) as target:
        for index in (0, 1, 5, 7, 8, 9, 20):
            end = int(plain[index])
            expected = generate(qwen, prompt, 30, end)
            limits = Limits(30, frozenset([end]))
            response = decode(target, KnownDrafts(text, 8, 97, 7), prompt, limits, Greedy())
            assert response.tokens.tolist() == expected.tolist()
            assert response.tokens[-1] == end
            assert response.lengths.sum() == len(expected) - 1
            assert decode_plainly(target, prompt, limits, Greedy()).tolist() == expected.tolist()


@pytest.mark.parametrize("new", [1, 2, 8, 9, 10])
def test_a_text_is_never_longer_than_asked_for(qwen, new):
    prompt = np.array([3, 14, 15, 92])
    text = np.concatenate([prompt, generate(qwen, prompt, 30)])
    with CachedTarget(qwen, (1,)) as target:
        response = decode(target, KnownDrafts(text, 8, 97, 7), prompt, Limits(new), Greedy())
    assert len(response.tokens) == new
    assert response.lengths.tolist() == {1: [], 2: [1], 8: [7], 9: [8], 10: [8, 1]}[new]


def test_features_are_the_outputs_of_their_layers(family):
    """However the text is cut, and after something else was read in between and taken back."""
    ids = torch.from_numpy(np.random.default_rng(1).integers(0, 97, 23))
    states = family(ids[None], output_hidden_states=True, use_cache=False).hidden_states
    logits = family(ids[None], use_cache=False).logits[0]
    with CachedTarget(family, (1, 3, 5)) as target:
        for start, end in pairwise([0, 7, 8, 20, 23]):
            target.read(torch.tensor([5, 4, 3]), logits=1)
            target.take_back(3)
            found_logits, found = target.read(ids[start:end], logits=end - start)
            expected = torch.cat([states[layer + 1][0, start:end] for layer in (1, 3, 5)], dim=-1)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(found_logits, logits[start:end], rtol=1e-4, atol=1e-3)
            assert target.length == end


def test_hooks_go_when_the_block_is_left(qwen):
    with CachedTarget(qwen, (1, 3)):
        assert sum(len(layer._forward_hooks) for layer in qwen.model.layers) == 2
    assert not any(layer._forward_hooks for layer in qwen.model.layers)


def test_a_draft_is_that_of_the_dense_oracle(qwen):
    """Whatever pieces the context was read in."""
    drafter, head = drafter_for(qwen).double(), target_head(qwen)
    head = type(head)(head.embedding_VH.double(), head.head_VH.double())
    features = torch.randn(19, 3 * 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    slots = build_slots([np.full(20, 7)], [np.ones(20, np.uint8)], [np.array([19])], block_size=8)
    expected = dense_hidden(drafter, head, features, slots)[0, 1:] @ head.head_VH.T
    for cuts in ([0, 19], [0, 1, 2, 12, 19]):
        context = DrafterContext(drafter, head)
        for start, end in pairwise(cuts):
            context.read(features[start:end])
        torch.testing.assert_close(context.draft(7), expected)


def test_sampled_text_has_the_targets_own_distribution():
    """Three tokens of a vocabulary of three, enumerated: 27 texts, two of their tokens from verifications."""
    model = random_target("Qwen3", vocab_size=3, hidden_size=16, num_hidden_layers=2)
    drafter, head = drafter_for(model, block_size=3, features=(0,)), target_head(model)
    prompt, temperature, times = np.array([1, 2]), 3.0, 400
    texts = np.array(list(product(range(3), repeat=3)))
    ids = torch.from_numpy(np.concatenate([np.tile(prompt, (27, 1)), texts], axis=1))
    log_p = (model(ids, use_cache=False).logits.double() / temperature).log_softmax(-1)[:, 1:-1]
    expected = times * log_p.gather(-1, ids[:, 2:, None])[..., 0].sum(1).exp().numpy()
    assert expected.sum() == pytest.approx(times)

    rule = RejectionSampling(temperature, torch.Generator().manual_seed(0))
    with CachedTarget(model, (0,)) as target:
        responses = [
            decode(target, DrafterContext(drafter, head), prompt, Limits(3), rule) for _ in range(times)
        ]
    assert {tuple(response.lengths) for response in responses} == {(2,), (1, 1)}
    found = np.bincount([response.tokens @ [9, 3, 1] for response in responses], minlength=27)
    common = expected >= 5
    found, expected = (np.append(each[common], each[~common].sum()) for each in (found, expected))
    assert len(found) > 12
    assert stats.chisquare(found, expected).pvalue > 0.01


def test_the_seed_decides_a_sampled_text(qwen):
    drafter, head = drafter_for(qwen), target_head(qwen)

    def text(seed):
        rule = RejectionSampling(1.0, torch.Generator().manual_seed(seed))
        with CachedTarget(qwen, drafter.shape.target_layer_ids) as target:
            return decode(
                target, DrafterContext(drafter, head), np.array([3]), Limits(20), rule
            ).tokens.tolist()

    assert text(0) == text(0) != text(1)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("Qwen3Next", {"layer_types": ["linear_attention", "full_attention"], "num_experts": 2}),
        ("Mamba", {"state_size": 4}),
    ],
)
def test_a_target_that_cannot_take_back_is_refused(name, sizes):
    config = getattr(transformers, f"{name}Config")(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, **sizes
    )
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with (
        pytest.raises(UsageError, match="cannot be taken back, so it cannot verify drafts"),
        CachedTarget(model, (0,)) as target,
    ):
        target.read(torch.tensor([1, 2]), logits=1)


def test_a_target_that_gives_no_numbers_is_an_error():
    model = random_target("Qwen3", num_hidden_layers=2)
    model.model.embed_tokens.weight[4] = float("nan")
    with (
        CachedTarget(model, (0,)) as target,
        pytest.raises(NonFiniteError, match="within the first 2 tokens"),
    ):
        decode_plainly(target, np.array([1, 4]), Limits(3), Greedy())


def test_a_layer_that_is_not_there_is_refused(qwen):
    with pytest.raises(UsageError, match="layer 8 is not in a target of 8 layers"):
        CachedTarget(qwen, (1, 8))


def test_end_ids_come_from_generation_settings_or_config(qwen):
    model = random_target("Llama", num_hidden_layers=1, eos_token_id=7)
    assert end_ids(model) == {7}
    model.generation_config.eos_token_id = [5, 6]
    assert end_ids(model) == {5, 6}
    model.generation_config.eos_token_id = model.config.eos_token_id = None
    assert end_ids(model) == frozenset()
