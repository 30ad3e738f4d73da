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


FAMILIES = {
    "Qwen3": ("Qwen3", {}),
    "Llama": ("Llama", {}),
    "Mistral": ("Mistral", {"sliding_window": None}),
    "Mistral with a window": ("Mistral", {"sliding_window": 4}),
    "Qwen2 with windows in some layers": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 3},
    ),
    "a mixture of experts": (
        "Qwen3Moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    ),
}


def random_model(family, **settings):
    """Of any family, with weights large enough that every position shows in those behind it."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**SMALL_SIZES, **settings})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(5 if weight.ndim > 1 else 1)
    return model


@pytest.fixture(params=FAMILIES.values(), ids=FAMILIES)
def model(request, tmp_path):
    """Saved and loaded, as a user's target is."""
    family, settings = request.param
    random_model(family, **settings).save_pretrained(tmp_path)
    return load_causal_lm(tmp_path)


def plain_states(model, ids, **arguments):
    """Outputs of the layers, from transformers' own forward pass."""
    with torch.no_grad():
        states = model(torch.as_tensor(ids), output_hidden_states=True, **arguments).hidden_states
    return torch.cat([states[layer + 1] for layer in LAYERS], dim=-1)


def test_both_layouts_give_the_features_of_lone_documents(model):
    ids, lengths = rows(9, 3, 14)
    documents = [row[:length] for row, length in zip(ids, lengths, strict=True)]
    alone = torch.cat([plain_states(model, doc[None], use_cache=False)[0] for doc in documents])
    target = Target(model, LAYERS, torch.device("cpu"))
    torch.testing.assert_close(target.features(ids, lengths), alone, rtol=1e-4, atol=1e-4)
    packed = target.packed_features(np.concatenate(documents)[None], lengths)
    torch.testing.assert_close(packed, alone, rtol=1e-4, atol=1e-4)


def test_left_padding_gives_the_same_features(model):
    """Rows as a decoder pads them, with the mask and positions that it gives."""
    ids, lengths = rows(9, 3, 14)
    left = np.full_like(ids, 5)
    real = np.zeros_like(ids)
    for row, length in enumerate(lengths):
        left[row, -length:], real[row, -length:] = ids[row, :length], 1
    positions = torch.as_tensor(np.maximum(real.cumsum(1) - 1, 0))
    states = plain_states(
        model, left, attention_mask=torch.as_tensor(real), position_ids=positions, use_cache=False
    )
    found = Target(model, LAYERS, torch.device("cpu")).features(ids, lengths)
    torch.testing.assert_close(found, states[torch.as_tensor(real == 1)], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_a_sliding_window_ends_where_its_name_says(layout):
    """A position sees itself and the three before it, as a dense mask over full attention says."""
    model = random_model("Mistral", sliding_window=None)
    ids, lengths = rows(13)
    place = torch.arange(13)
    distance = place[:, None] - place
    sees = (distance >= 0) & (distance < 4)
    mask = torch.zeros(13, 13).masked_fill(~sees, float("-inf"))[None, None]
    expected = plain_states(model, ids, attention_mask=mask, use_cache=False)[0]
    target = Target(random_model("Mistral", sliding_window=4), LAYERS, torch.device("cpu"))
    read = target.features if layout == "padded" else target.packed_features
    torch.testing.assert_close(read(ids, lengths), expected, rtol=1e-4, atol=1e-4)
    without = plain_states(model, ids, use_cache=False)[0]
    assert (expected - without).abs()[4:].amax(1).min() > 0.01, "beyond the window it matters"


def test_packed_documents_leak_through_transformers_cache_and_not_in_ours(model, monkeypatch):
    """With a cache, transformers overlooks restarting positions; we tell attention where documents end."""
    ids, lengths = rows(7, 13)
    packed = np.concatenate([ids[0, :7], ids[1]])[None]
    positions = torch.cat([torch.arange(7), torch.arange(13)])[None]
    alone = plain_states(model, ids[1:], use_cache=False)[0]
    leaking = plain_states(model, packed, position_ids=positions, use_cache=True)[0, 7:]
    assert (leaking - alone).abs().max() > 0.1, "the library has mended it: say so in the target"
    target = Target(model, LAYERS, torch.device("cpu"))
    torch.testing.assert_close(target.packed_features(packed, lengths)[7:], alone, rtol=1e-4, atol=1e-4)
    forward = model.model.forward
    monkeypatch.setattr(model.model, "forward", lambda **given: forward(**{**given, "use_cache": True}))
    torch.testing.assert_close(target.packed_features(packed, lengths)[7:], alone, rtol=1e-4, atol=1e-4)


def test_no_cache_is_built(model):
    built = []
    model.model.register_forward_hook(lambda *call: built.append(call[-1].past_key_values))
    target = Target(model, LAYERS, torch.device("cpu"))
    ids, lengths = rows(7)
    target.features(ids, lengths)
    target.packed_features(ids, lengths)
    assert built and not any(built)


@pytest.mark.parametrize(
    ("family", "settings", "reason"),
    [
        ("Lfm2", {"layer_types": ["conv", "full_attention"] * 4}, "off by"),
        ("GptOss", {"num_local_experts": 4, "num_experts_per_tok": 2}, "off by"),
        ("Gemma2", {}, "soft-capped"),
    ],
    ids=["convolutions", "attention sinks", "soft-capped scores"],
)
def test_what_would_leak_between_packed_documents_is_refused(family, settings, reason):
    """Padded rows of the same target are fine."""
    model = random_model(family, **settings)
    ids, lengths = rows(9, 3)
    target = Target(model, LAYERS, torch.device("cpu"))
    alone = [
        target.features(ids[row : row + 1, :length], lengths[row : row + 1])
        for row, length in enumerate(lengths)
    ]
    torch.testing.assert_close(target.features(ids, lengths), torch.cat(alone), rtol=1e-4, atol=1e-4)
    with pytest.raises(UsageError, match=rf"{reason}.*use a strategy that pads"):
        target.packed_features(np.concatenate([ids[0], ids[1, :3]])[None], lengths)


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_half_precision_travels_as_it_is_and_stays_near(small_target, target, layout):
    half = Target.load(small_target, LAYERS, dtype="bfloat16")
    ids, lengths = rows(31)
    read = half.features if layout == "padded" else half.packed_features
    found, exact = read(ids, lengths), target.features(ids, lengths)
    assert found.dtype == torch.bfloat16
    assert (found.float() - exact).norm() < 0.02 * exact.norm()
    assert (found.float() - exact).norm() > 0, "it did run in half precision"


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


def test_a_vocabulary_larger_than_the_tokenizers_changes_nothing(small_target, target):
    """As Qwen3's: 151,936 rows for 151,669 tokens. The rows beyond can be used, as the mask token is."""
    model = load_causal_lm(small_target)
    model.resize_token_embeddings(128)
    larger = Target(model, LAYERS, torch.device("cpu"))
    ids, lengths = rows(9)
    torch.testing.assert_close(larger.features(ids, lengths), target.features(ids, lengths))
    ids[0, 2] = 127
    assert bool(torch.isfinite(larger.features(ids, lengths)).all())


def saved(folder, name):
    """A folder that holds something else than a decoder."""
    sizes = {"vocab_size": 97, "hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 4}
    if name == "encoder":
        model = transformers.BertForMaskedLM(transformers.BertConfig(**sizes, num_hidden_layers=2))
    elif name == "encoder and decoder":
        config = transformers.T5Config(
            vocab_size=97, d_model=24, d_kv=6, d_ff=40, num_layers=2, num_heads=4, decoder_start_token_id=0
        )
        model = transformers.T5ForConditionalGeneration(config)
    elif name == "classifier":
        model = transformers.Qwen3ForSequenceClassification(transformers.Qwen3Config(**SMALL_SIZES))
    else:
        config = transformers.GPT2Config(
            vocab_size=97, n_embd=24, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
        )
        model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("encoder", "holds a BertForMaskedLM, which is no causal LM"),
        ("encoder and decoder", "its architecture is no causal LM"),
        ("classifier", "holds a Qwen3ForSequenceClassification, which is no causal LM"),
        ("other names", "a GPT2LMHeadModel has no list of decoder layers"),
    ],
)
def test_what_is_no_decoder_is_refused_in_one_line(name, words, tmp_path, capfd):
    folder = saved(tmp_path, name)
    capfd.readouterr()
    with pytest.raises(UsageError, match=words) as refused:
        Target.load(folder, (0, 1))
    assert "\n" not in str(refused.value)
    assert capfd.readouterr().err == "", "nor does the library say more"


def without_weights(folder):
    (folder / "model.safetensors").unlink()


def cut_short(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5000])


def of_other_sizes(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 44}))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (without_weights, "no file named model.safetensors"),
        (cut_short, "not fully covered"),
        (of_other_sizes, "do not have the shapes of its config.json"),
    ],
)
def test_a_damaged_folder_is_refused_in_one_line(small_target, tmp_path, damage, words, capfd):
    folder = tmp_path / "damaged"
    shutil.copytree(small_target, folder)
    damage(folder)
    with pytest.raises(UsageError, match=words) as refused:
        load_causal_lm(folder)
    assert str(folder) in str(refused.value) and "\n" not in str(refused.value)
    assert capfd.readouterr().err == ""
