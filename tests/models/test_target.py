from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
import transformers
from oracles import SMALL_SIZES
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from dflash.errors import UsageError
from dflash.models.target import Target, load_causal_lm, target_head

LAYERS = (1, 2, 3, 4, 5)


@pytest.fixture(scope="module")
def target(small_target):
    return Target.load(small_target, LAYERS)


def rows(*lengths, seed=0):
    """Right-padded rows of random tokens."""
    rng = np.random.default_rng(seed)
    ids = np.full((len(lengths), max(lengths)), 5)
    for row, length in enumerate(lengths):
        ids[row, :length] = rng.integers(0, 96, length)
    return ids, np.array(lengths)


def test_a_feature_is_the_output_of_its_decoder_layer(small_target, target):
    """transformers' hidden_states[id + 1], for every id below the last layer."""
    ids, lengths = rows(17)
    model = AutoModelForCausalLM.from_pretrained(small_target)
    with torch.no_grad():
        states = model(torch.from_numpy(ids), output_hidden_states=True, use_cache=False).hidden_states
    expected = torch.cat([states[layer + 1][0] for layer in LAYERS], dim=-1)
    torch.testing.assert_close(target.features(ids, lengths), expected)


def test_a_feature_one_layer_off_would_show(small_target):
    """With a layer that adds a known constant, the feature carries exactly the layers up to its own."""
    model = load_causal_lm(small_target)
    for number, layer in enumerate(model.model.layers):
        layer.forward = lambda hidden, *_, number=number, **__: hidden + 10.0**number
    ids, lengths = rows(3)
    found = Target(model, LAYERS, torch.device("cpu")).features(ids, lengths)
    embedded = model.model.embed_tokens(torch.from_numpy(ids))[0]
    for slot, layer in enumerate(LAYERS):
        expected = embedded + sum(10.0**number for number in range(layer + 1))
        torch.testing.assert_close(found[:, slot * 24 : (slot + 1) * 24], expected)


def test_padded_rows_equal_lone_rows(target):
    ids, lengths = rows(4, 31, 1, 18, 31)
    together = target.features(ids, lengths)
    ends = np.cumsum(lengths)
    for row, (start, end) in enumerate(zip(ends - lengths, ends, strict=True)):
        alone = target.features(ids[row : row + 1, : lengths[row]], lengths[row : row + 1])
        torch.testing.assert_close(together[start:end], alone, rtol=0, atol=1e-5)


def test_packed_documents_equal_lone_ones_and_padded_rows(target):
    ids, lengths = rows(4, 31, 1, 18, 31)
    packed = np.concatenate([row[:length] for row, length in zip(ids, lengths, strict=True)])[None]
    found = target.packed_features(packed, lengths)
    torch.testing.assert_close(found, target.features(ids, lengths), rtol=0, atol=1e-5)
    ends = np.cumsum(lengths)
    for start, end in zip(ends - lengths, ends, strict=True):
        alone = target.packed_features(packed[:, start:end], np.array([end - start]))
        torch.testing.assert_close(found[start:end], alone, rtol=0, atol=1e-5)


def test_packed_documents_are_blind_to_each_other(target):
    packed, _ = rows(20)
    cut = np.array([7, 13])
    other = packed.copy()
    other[0, :7] = (other[0, :7] + 1) % 96
    before, after = (target.packed_features(row, cut) for row in (packed, other))
    assert torch.equal(before[7:], after[7:])
    assert (before[:7] != after[:7]).any(dim=1).all()


@pytest.mark.parametrize("family", ["Llama", "Mistral"])
def test_both_layouts_agree_for_other_families(family):
    config = getattr(transformers, f"{family}Config")(
        **SMALL_SIZES,
        **({"sliding_window": None} if family == "Mistral" else {}),
    )
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    target = Target(model, LAYERS, torch.device("cpu"))
    ids, lengths = rows(9, 3)
    packed = np.concatenate([ids[0], ids[1, :3]])[None]
    torch.testing.assert_close(
        target.packed_features(packed, lengths), target.features(ids, lengths), rtol=0, atol=1e-5
    )


def test_a_sliding_window_is_refused_in_the_packed_layout():
    config = transformers.MistralConfig(
        **SMALL_SIZES,
        sliding_window=4,
    )
    target = Target(transformers.MistralForCausalLM(config).eval(), LAYERS, torch.device("cpu"))
    with pytest.raises(UsageError, match="sliding"):
        target.packed_features(np.array([[1, 2, 3]]), np.array([3]))


def test_what_stands_in_the_padding_does_not_matter(target):
    ids, lengths = rows(4, 31)
    other = ids.copy()
    other[0, 4:] = 77
    assert torch.equal(target.features(ids, lengths), target.features(other, lengths))


def test_tokens_of_another_tokenizer_are_refused(target):
    ids, lengths = rows(4)
    ids[0, 2] = 97
    with pytest.raises(UsageError, match=r"token id 97 .* vocabulary of 97: .*another tokenizer"):
        target.features(ids, lengths)


def test_only_the_layers_that_are_read_are_run(target):
    assert len(target._body.layers) == LAYERS[-1] + 1


def test_head_is_the_targets_own(small_target):
    model = load_causal_lm(small_target)
    head = target_head(model)
    assert torch.equal(head.embedding_VH, model.model.embed_tokens.weight)
    assert torch.equal(head.head_VH, model.lm_head.weight)
    assert not any(weight.requires_grad for weight in model.parameters())


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"no model folder.*config\.json"):
        load_causal_lm(tmp_path)


def test_a_half_loaded_target_is_refused(small_target, tmp_path):
    folder = tmp_path / "half"
    shutil.copytree(small_target, folder)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.3.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UsageError, match=r"lacks 1 weights.*layers\.3\.mlp\.up_proj"):
        load_causal_lm(folder)


def test_an_unknown_architecture_is_refused_in_one_line(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "nothing-like-it"}')
    with pytest.raises(UsageError, match="cannot load a causal LM") as refused:
        load_causal_lm(tmp_path)
    assert "\n" not in str(refused.value)
