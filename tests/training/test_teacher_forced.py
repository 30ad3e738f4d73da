"""Accepted lengths as training sees them and as decoding finds them, on the target's own text."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from decoding import drafter_for, random_target
from oracles import dense_hidden, document_slots, random_documents, random_drafter, random_head, small_shape

from dflash.config import load_config
from dflash.data.sources import target_folder
from dflash.data.store import StoreSample, TokenStore, write_store
from dflash.errors import NonFiniteError
from dflash.models.acceptance import Acceptance
from dflash.models.attention import grouped
from dflash.models.cached_target import CachedTarget
from dflash.models.decode import DrafterContext, Limits, Response, decode, decode_plainly
from dflash.models.loss import block_loss
from dflash.models.sampling import Greedy
from dflash.models.target import Target, load_causal_lm, target_head
from dflash.training.micro_batch import accepted_lengths
from dflash.training.models import load_models
from dflash.training.run import training_run
from dflash.training.schedule import Window, in_training_order
from dflash.training.teacher_forced import Parity, parity, teacher_forced

NEW_TOKENS = 49
"""one from the prompt and three full blocks of 16"""


@pytest.fixture(scope="module")
def regenerated(tmp_path_factory):
    """A configuration to train on eight random prompts with the target's own greedy text behind them."""
    folder = tmp_path_factory.mktemp("regenerated")
    model = random_target("Qwen3", hidden_size=48, head_dim=12)
    model.save_pretrained(folder)
    tokens = [{"id": 96, "content": "<|mask|>"}]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 96, 8) for _ in range(8)]
    with CachedTarget(model, (1,)) as target:
        texts = [decode_plainly(target, prompt, Limits(NEW_TOKENS), Greedy()) for prompt in prompts]
    mask = np.repeat([0, 1], [8, NEW_TOKENS])
    samples = (StoreSample(np.concatenate(pair), mask, "sample") for pair in zip(prompts, texts, strict=True))
    write_store(folder / "store.arrow", samples, {})
    settings = {
        "data.target": folder,
        "data.store": folder / "store.arrow",
        "data.allow_untrained_target": "true",
        "drafter.anchor_stride": 4,
        "drafter.max_anchors": NEW_TOKENS,
        "optimizer.learning_rate": 1e-2,
    }
    return load_config(None, tuple(f"{key}={value}" for key, value in settings.items()))


def train(config, windows):
    """A drafter after so many windows over all samples."""
    store = TokenStore.open(config.data.store)
    models = load_models(config, store)
    every = [(np.arange(8), store.lengths)]
    work = in_training_order((Window(epoch, "padded", every) for epoch in range(windows)), [], [])
    with training_run(config, store, models, work, windows) as run:
        assert len(list(run.results)) == windows
    return models.drafter


def compared(config, drafter, new_tokens=NEW_TOKENS):
    """Responses to the samples' prompts, and their teacher-forced lengths."""
    store, model = TokenStore.open(config.data.store), load_causal_lm(target_folder(config.data))
    prompts = [store.tokens(row)[:8].astype(np.int64) for row in range(8)]
    with CachedTarget(model, drafter.shape.target_layer_ids) as target:
        responses = [
            decode(target, DrafterContext(drafter, target_head(model)), prompt, Limits(new_tokens), Greedy())
            for prompt in prompts
        ]
    assert all(
        response.text[: store.lengths[row]].tolist() == store.tokens(row).tolist()[: len(response.text)]
        for row, response in enumerate(responses)
    )
    return responses, teacher_forced(drafter, model, responses)


def mean_lengths(responses, forced):
    decoded = Acceptance(16, [response.lengths for response in responses]).pooled_tau
    return decoded, np.concatenate(forced.lengths_R).mean()


def test_a_drafter_overfits_regenerated_text_and_decodes_it_so(regenerated):
    responses, forced = compared(regenerated, train(regenerated, windows=140))
    decoded, taught = mean_lengths(responses, forced)
    assert decoded > 12
    assert taught == decoded
    assert parity(forced, responses) == Parity(same := sum(len(r.lengths) for r in responses), same)


@pytest.fixture(scope="module")
def half_trained(regenerated):
    return train(regenerated, windows=50)


def test_lengths_agree_at_every_verification(regenerated, half_trained):
    """Of a drafter that gets some slots right and some wrong, on text longer than any that it has seen."""
    responses, forced = compared(regenerated, half_trained, new_tokens=64)
    decoded, taught = mean_lengths(responses, forced)
    assert 1.2 < decoded < 12
    assert taught == decoded
    found = parity(forced, responses)
    assert found.same == found.verifications > 60
    for response, lengths in zip(responses, forced.lengths_R, strict=True):
        assert lengths.tolist() == response.lengths.tolist()
    blocks = sum(len(response.tokens) - 1 for response in responses)
    assert len(forced.everywhere) == blocks, "a block at every position that has a label"


def plant_a_layer_too_high(monkeypatch):
    make = Target.__init__

    def shifted(self, model, layer_ids, *arguments):
        make(self, model, tuple(layer + 1 for layer in layer_ids), *arguments)

    monkeypatch.setattr(Target, "__init__", shifted)


def plant_context_up_to_the_anchor(monkeypatch):
    """``<=`` for ``<``: a block sees the feature of its own anchor."""
    group = grouped.group_blocks
    monkeypatch.setattr(
        "dflash.models.attention.backends.group_blocks",
        lambda document_N, position_N, *more: group(document_N, position_N + 1, *more),
    )


@pytest.mark.parametrize("plant", [plant_a_layer_too_high, plant_context_up_to_the_anchor])
def test_parity_catches_a_mistake_in_training(regenerated, monkeypatch, plant):
    """Trained and evaluated with the mistake, a drafter looks as good as without; only decoding tells."""
    plant(monkeypatch)
    responses, forced = compared(regenerated, train(regenerated, windows=90), new_tokens=64)
    found = parity(forced, responses)
    assert found.verifications - found.same >= 5
    assert not found.holds


@pytest.mark.parametrize(
    ("same", "verifications", "holds"),
    [(0, 0, True), (10, 10, True), (9, 10, True), (8, 10, False), (990, 1_000, True), (989, 1_000, False)],
)
def test_one_verification_or_one_in_a_hundred_may_differ(same, verifications, holds):
    assert Parity(same, verifications).holds == holds


def test_accepted_lengths_are_the_agreeing_prefixes_of_the_dense_oracle():
    """One more than the leading slots that are labelled and ranked first, whatever the chunks are."""
    shape = small_shape()
    drafter, head = random_drafter(shape), random_head(shape)
    batch = random_documents(shape, [9, 30, 12, 1, 31], [[0, 3, 8], [2, 7, 20], [5], [], [1, 3, 29]])
    best = []
    for document in range(5):
        slots = document_slots(batch, document)
        features = batch.features_TF[batch.offsets_D[document] : batch.offsets_D[document + 1]]
        if len(slots):
            best.append((dense_hidden(drafter, head, features, slots) @ head.head_VH.T).argmax(-1).numpy())
    # Two labels in three are what the drafter ranks first, so that there are prefixes of every length.
    right = np.random.default_rng(0).random(batch.slots.label_NB.shape) < 2 / 3
    np.copyto(batch.slots.label_NB, np.where(right, np.concatenate(best), 0))
    expected = []
    for label_B, labelled_B, best_B in zip(
        batch.slots.label_NB, batch.slots.labelled_NB, np.concatenate(best), strict=True
    ):
        length = 1
        while length < shape.block_size and labelled_B[length] and label_B[length] == best_B[length]:
            length += 1
        expected.append(length)
    assert len(set(expected)) > 2
    loss = block_loss(load_config().drafter)
    for budget in (5, 15, 1000):
        found = accepted_lengths(drafter, head, batch, loss=loss, anchor_budget=budget)
        assert found.tolist() == expected


def test_features_that_are_not_finite_are_an_error():
    model = random_target("Qwen3")
    drafter = drafter_for(model)
    response = Response(np.array([1, 2]), np.array([3, 4, 5]), np.array([2]))
    with torch.no_grad():
        model.model.embed_tokens.weight[4] = float("nan")
    with pytest.raises(NonFiniteError, match="features of response 0 are not finite"):
        teacher_forced(drafter, model, [response])
