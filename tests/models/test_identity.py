from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
import transformers
from oracles import SMALL_SIZES
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from dflash.config import DataSettings
from dflash.data.sources import open_store, target_folder
from dflash.data.store import StoreSample, TokenStore, write_store
from dflash.errors import UsageError
from dflash.models.identity import identify, known_text, perplexity, refuse_untrained
from dflash.models.target import load_causal_lm

SAMPLE = DataSettings()
VOCABULARY = 2048


@pytest.fixture(scope="module")
def sample_text():
    return known_text(open_store(SAMPLE))


@pytest.fixture
def sample_model():
    return load_causal_lm(target_folder(SAMPLE))


def refused(model, text):
    store = open_store(SAMPLE)
    try:
        refuse_untrained(perplexity(model, text), VOCABULARY, target_folder(SAMPLE), store)
    except UsageError:
        return True
    return False


def test_perplexity_is_what_transformers_own_loss_says(small_target):
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 97, length) for length in (2, 9, 31)]
    model = AutoModelForCausalLM.from_pretrained(small_target)
    with torch.no_grad():
        ids = [torch.from_numpy(document)[None] for document in documents]
        losses = [model(input_ids=row, labels=row).loss.item() * (row.shape[1] - 1) for row in ids]
    expected = np.exp(sum(losses) / (1 + 8 + 30))
    assert perplexity(load_causal_lm(small_target), documents) == pytest.approx(expected, rel=1e-5)


def test_a_model_that_knows_nothing_is_at_the_vocabularys_size(small_target):
    """A head of zeros: every token is as likely as any other."""
    model = load_causal_lm(small_target)
    model.lm_head.weight.zero_()
    assert perplexity(model, [np.arange(50)]) == pytest.approx(97, rel=1e-5)


@pytest.mark.parametrize("family", ["Qwen3", "Llama", "Mistral"])
@pytest.mark.parametrize("deviation", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("tied", [False, True])
def test_random_weights_are_refused(sample_text, family, deviation, tied):
    sizes = {**SMALL_SIZES, "vocab_size": VOCABULARY}
    config = getattr(transformers, f"{family}Config")(
        **sizes, initializer_range=deviation, tie_word_embeddings=tied
    )
    torch.manual_seed(1)
    assert refused(getattr(transformers, f"{family}ForCausalLM")(config).eval(), sample_text)


def test_a_small_trained_target_passes_by_far(sample_model, sample_text):
    """The smallest that anyone would use: a million weights, twenty minutes of training."""
    assert perplexity(sample_model, sample_text) < 0.02 * VOCABULARY
    assert not refused(sample_model, sample_text)
    assert not refused(sample_model.bfloat16(), sample_text)


@pytest.mark.parametrize("part", ["embed_tokens", "lm_head", "layers"])
def test_a_target_whose_load_left_a_part_random_is_refused(sample_model, sample_text, part):
    """Another framework, or another version, may drop a part without a word about missing keys."""
    torch.manual_seed(1)
    for name, weight in sample_model.named_parameters():
        if part in name and weight.ndim > 1:
            weight.normal_(0, 0.02)
    assert refused(sample_model, sample_text)


def test_a_store_of_another_tokenizer_is_refused(sample_model, sample_text):
    other = np.random.default_rng(0).permutation(VOCABULARY)
    assert refused(sample_model, [other[document] for document in sample_text])
    with pytest.raises(UsageError, match=r"token id 2048 .* vocabulary of 2048.*own tokenizer"):
        perplexity(sample_model, [np.array([5, 2048])])


def test_weights_that_are_not_finite_are_refused(sample_model, sample_text):
    sample_model.lm_head.weight[3, 3] = float("nan")
    assert refused(sample_model, sample_text)


def test_the_known_text_is_the_same_for_every_run_and_from_held_out_rows(tmp_path):
    def store(name, held_out):
        samples = (
            StoreSample(np.full(length, row), np.ones(length, np.uint8), f"{row}", held_out(row))
            for row, length in enumerate([1, 5, 200, 3, *[7] * 96])
        )
        write_store(tmp_path / name, samples, {})
        return TokenStore.open(tmp_path / name)

    split = store("split", lambda row: row % 2 == 0)
    text = known_text(split)
    assert all(len(set(document)) == 1 and document[0] % 2 == 0 for document in text)
    assert len(text) == 8 and max(len(document) for document in text) == 64
    assert [document.tolist() for document in text] == [document.tolist() for document in known_text(split)]
    assert 0 not in [document[0] for document in text], "nothing can be predicted in a sample of one token"
    assert len(known_text(store("whole", lambda _: False))) == 8, "no held-out rows: those of training"
    assert len(known_text(store("single", lambda row: row == 3))) == 1


def test_an_identity_changes_with_what_it_names(small_target, tmp_path):
    def copied(name):
        return shutil.copytree(small_target, tmp_path / name)

    original = identify(small_target, 97.0)
    assert (original.architecture, original.layers, original.hidden_size, original.vocabulary) == (
        "Qwen3ForCausalLM",
        8,
        24,
        97,
    )
    assert identify(copied("same"), 97.0) == original

    retrained = copied("retrained")
    weights = load_file(retrained / "model.safetensors")
    weights["model.layers.7.mlp.up_proj.weight"][0, 0] += 1e-3
    save_file(weights, retrained / "model.safetensors", metadata={"format": "pt"})
    changed = identify(retrained, 97.0)
    assert changed.weight_hash != original.weight_hash and changed.config_hash == original.config_hash

    reordered = copied("reordered")
    config = json.loads((reordered / "config.json").read_text())
    (reordered / "config.json").write_text(json.dumps(dict(reversed(config.items())), indent=7))
    assert identify(reordered, 97.0) == original, "the order of keys says nothing"
    (reordered / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5}))
    changed = identify(reordered, 97.0)
    assert changed.config_hash != original.config_hash and changed.weight_hash == original.weight_hash


def test_a_perplexity_that_is_not_finite_is_recorded_as_none(small_target):
    assert identify(small_target, float("inf")).perplexity is None
