"""Folders against the published format, written down here by hand: nothing is taken from our own tables."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from oracles import (
    dense_hidden,
    document_slots,
    random_documents,
    random_drafter,
    random_head,
    small_shape,
)
from safetensors.torch import load_file, save_file

from dflash.errors import UsageError
from dflash.models.attention import group_blocks
from dflash.models.export import export_drafter, read_drafter, tensors_in, validate_export, write_drafter
from dflash.models.published_config import ServingFacts
from dflash.models.shape import DrafterShape

SHAPE = small_shape()
FACTS = ServingFacts(512, {"eos_token_id": [3, 4], "pad_token_id": 0})

# The key table of the released checkpoints, for two layers: H hidden, M of the feed-forward, Q queries,
# G keys and values, D of a head, F all features.
H, M, Q, G, D, F = 24, 40, 48, 16, 8, 72
LAYER = {
    "input_layernorm.weight": (H,),
    "post_attention_layernorm.weight": (H,),
    "self_attn.q_proj.weight": (Q, H),
    "self_attn.k_proj.weight": (G, H),
    "self_attn.v_proj.weight": (G, H),
    "self_attn.o_proj.weight": (H, Q),
    "self_attn.q_norm.weight": (D,),
    "self_attn.k_norm.weight": (D,),
    "mlp.gate_proj.weight": (M, H),
    "mlp.up_proj.weight": (M, H),
    "mlp.down_proj.weight": (H, M),
}
KEYS = {"fc.weight": (H, F), "hidden_norm.weight": (H,), "norm.weight": (H,)} | {
    f"layers.{i}.{name}": shape for i in range(2) for name, shape in LAYER.items()
}
RELEASED = {
    "architectures": ["DFlashDraftModel"],
    "attention_bias": False,
    "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    "block_size": 5,
    "bos_token_id": 1,
    "dflash_config": {"mask_token_id": 60, "target_layer_ids": [1, 3, 5]},
    "dtype": "bfloat16",
    "eos_token_id": 2,
    "head_dim": D,
    "hidden_act": "silu",
    "hidden_size": H,
    "intermediate_size": M,
    "layer_types": ["full_attention"] * 2,
    "max_position_embeddings": 512,
    "model_type": "qwen3",
    "num_attention_heads": 6,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_target_layers": 8,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 10_000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 61,
}
"""config.json as it is published, at the sizes of SHAPE."""


def released_tensors(dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in KEYS.items()}


def released(folder, config=RELEASED, tensors=None):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(released_tensors() if tensors is None else tensors, folder / "model.safetensors")
    return folder


def changed(config, **changes):
    """With some keys changed; a value of ... takes the key away, a dict changes the keys in a part."""
    config = dict(config)
    for name, value in changes.items():
        if value is ...:
            config.pop(name, None)
        elif isinstance(value, dict) and isinstance(config.get(name), dict):
            config[name] = changed(config[name], **value)
        else:
            config[name] = value
    return config


@pytest.fixture
def drafter():
    return random_drafter(SHAPE).float()


@pytest.fixture
def exported(drafter, tmp_path):
    export_drafter(tmp_path / "exported", drafter, FACTS, torch.bfloat16)
    return tmp_path / "exported"


def edit_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(changed(config, **changes)))


def edit_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


# ---------------------------------------------------------------- what is written


def test_keys_shapes_and_types_are_as_published(exported):
    tensors = load_file(exported / "model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == KEYS
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert sorted(file.name for file in exported.iterdir()) == ["config.json", "model.safetensors"]
    modes = {file.stat().st_mode & 0o777 for file in exported.iterdir()}
    assert len(modes) == 1, "who may read the one may read the other"


def test_config_says_all_that_a_released_one_says(exported):
    config = json.loads((exported / "config.json").read_text())
    known = changed(RELEASED, auto_map=..., bos_token_id=..., eos_token_id=[3, 4], dflash_config=...)
    assert {name: config[name] for name in known} == known
    assert config["dflash_config"] == {"block_size": 5, "mask_token_id": 60, "target_layer_ids": [1, 3, 5]}
    assert config["pad_token_id"] == 0 and "bos_token_id" not in config
    assert "auto_map" not in config, "there is no file of code beside it"


def test_transformers_reads_the_config(exported):
    """What z-lab's class, which is built on it, finds there."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(exported, local_files_only=True)
    assert (config.model_type, config.num_hidden_layers, config.head_dim) == ("qwen3", 2, D)
    assert (config.block_size, config.num_target_layers) == (5, 8)
    assert config.layer_types == ["full_attention"] * 2 and config.sliding_window is None
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 10_000.0}
    assert config.dtype == torch.bfloat16 and config.max_position_embeddings == 512


def test_what_is_exported_computes_what_was_trained(drafter, tmp_path):
    """A dense model of its own on nothing but the two files, beside the drafter's own forward pass."""
    export_drafter(tmp_path / "exported", drafter, FACTS, torch.float32)
    config = json.loads((tmp_path / "exported" / "config.json").read_text())
    tensors = load_file(tmp_path / "exported" / "model.safetensors")
    names = {
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "layers": "num_hidden_layers",
        "target_layers": "num_target_layers",
    }
    sizes = {name: config.get(names.get(name, name)) for name in vars(SHAPE)} | config["dflash_config"]
    foreign = SimpleNamespace(
        shape=DrafterShape(**{**sizes, "target_layer_ids": tuple(sizes["target_layer_ids"])}),
        named_parameters=lambda: [(name, tensor.double()) for name, tensor in tensors.items()],
    )
    head, batch = random_head(SHAPE), random_documents(SHAPE, [30], [[0, 3, 11, 28]])
    slots = document_slots(batch, 0)
    theirs = dense_hidden(foreign, head, batch.features_TF, slots)

    mine = drafter.double()
    ours = mine.draft(
        mine.encode(batch.features_TF, batch.offsets_D),
        group_blocks(slots.document_N, slots.position_N, batch.offsets_D, torch.device("cpu")),
        torch.from_numpy(slots.position_N),
        torch.from_numpy(slots.token_N),
        head,
    )
    # transformers makes the oracle's rotary frequencies in fp32.
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_round_trip(drafter, dtype, tmp_path):
    export_drafter(tmp_path / "exported", drafter, FACTS, dtype)
    again = read_drafter(tmp_path / "exported")
    assert again.shape == drafter.shape
    weights = again.state_dict()
    assert weights.keys() == drafter.state_dict().keys()
    for name, weight in drafter.state_dict().items():
        assert torch.equal(weights[name], weight.to(dtype).float()), name
    assert all(weight.requires_grad and weight.dtype == torch.float32 for weight in again.parameters())


def test_an_export_replaces_nothing(exported, drafter):
    before = (exported / "model.safetensors").read_bytes()
    with pytest.raises(UsageError, match="exists already"):
        export_drafter(exported, drafter, FACTS, torch.float32)
    assert (exported / "model.safetensors").read_bytes() == before
    (exported.parent / "empty").mkdir()
    export_drafter(exported.parent / "empty", drafter, FACTS, torch.float32)


def test_a_drafter_that_is_not_whole_is_not_exported(drafter, tmp_path):
    with torch.no_grad():
        drafter.layers[1].mlp.up_proj.weight[3, 4] = math.nan
    with pytest.raises(UsageError, match=r"layers\.1\.mlp\.up_proj\.weight"):
        export_drafter(tmp_path / "out", drafter, FACTS, torch.bfloat16)
    assert not list(tmp_path.iterdir()), "neither the folder nor a part of it"


def test_the_files_of_a_run_say_all_but_the_servers_type(drafter, tmp_path):
    write_drafter(tmp_path / "run" / "drafter", drafter, FACTS)
    assert read_drafter(tmp_path / "run").shape == SHAPE, "the folder of a run will do"
    validate_export(tmp_path / "run" / "drafter")
    write_drafter(tmp_path / "unknown", drafter)
    with pytest.raises(UsageError, match="max_position_embeddings"):
        validate_export(tmp_path / "unknown")


def test_the_list_of_tensors(exported):
    tensors = tensors_in(exported)
    assert {tensor.name: tensor.shape for tensor in tensors} == KEYS
    assert sum(tensor.parameters for tensor in tensors) == sum(math.prod(shape) for shape in KEYS.values())
    assert {tensor.dtype for tensor in tensors} == {"BF16"}


# ---------------------------------------------------------------- what is read


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"block_size": ..., "dflash_config": {"block_size": 5}},
        {"dflash_config": {"block_size": 5}},
        {"rope_theta": ..., "rope_parameters": {"rope_type": "default", "rope_theta": 10_000}},
        {"rope_scaling": {"rope_type": "default"}},
        {"layer_types": ...},
        {"dflash_config": {"target_layer_ids": ...}},
    ],
    ids=str,
)
def test_a_released_folder_is_read(changes, tmp_path):
    """Where newer and older ones put the block size and the rotary base; ids that follow from the depths."""
    config = changed(RELEASED, **changes)
    shape = SHAPE
    tensors = released_tensors()
    if "target_layer_ids" not in config["dflash_config"]:
        shape = replace(SHAPE, target_layer_ids=(1, 5))  # round(1 + i * (8 - 4) / (2 - 1)) of its two layers
        tensors["fc.weight"] = tensors["fc.weight"][:, : 2 * H].contiguous()
    drafter = read_drafter(released(tmp_path / "released", config, tensors))
    assert drafter.shape == shape
    for name, weight in drafter.state_dict().items():
        assert torch.equal(weight, tensors[name].float()), name


def test_keys_with_the_prefix_that_servers_tolerate(tmp_path):
    tensors = released_tensors()
    prefixed = {f"model.{name}": tensor for name, tensor in tensors.items()}
    drafter = read_drafter(released(tmp_path / "released", tensors=prefixed))
    assert torch.equal(drafter.fc.weight, tensors["fc.weight"].float())


WRONG_CONFIGS = {
    "block_size is 5 in one place and 8": {"dflash_config": {"block_size": 8}},
    "block_size is missing": {"block_size": ...},
    "rope_theta is missing": {"rope_theta": ...},
    "rope_theta is 10000.0 in one place and 5000": {"rope_parameters": {"rope_theta": 5_000}},
    "scaled ('yarn')": {"rope_scaling": {"rope_type": "yarn", "factor": 4}},
    "scaled ('llama3')": {"rope_parameters": {"rope_type": "llama3", "rope_theta": 10_000}},
    "scaled ('linear')": {"rope_scaling": {"type": "linear", "factor": 2}},
    "sliding windows": {"layer_types": ["full_attention", "sliding_attention"]},
    "it has sliding windows": {"use_sliding_window": True},
    "windows; only full": {"dflash_config": {"use_swa": True}},
    "layer_types has 1 entries for 2 layers": {"layer_types": ["full_attention"]},
    "biases": {"attention_bias": True},
    "causal": {"is_causal": True},
    "blocks are causal": {"dflash_config": {"causal": True}},
    "hidden_act is 'gelu'": {"hidden_act": "gelu"},
    "architectures is ['DFlashSpeculator']": {"architectures": ["DFlashSpeculator"]},
    "`dflash_config`": {"dflash_config": ...},
    "`mask_token_id`": {"dflash_config": {"mask_token_id": ...}},
    "`num_target_layers`": {"num_target_layers": ...},
    "hidden_size": {"hidden_size": "24"},
    "mask_token_id 60 is the pad_token_id": {"pad_token_id": 60},
    "mask_token_id 60 is the eos_token_id": {"eos_token_id": [2, 60]},
    "mask_token_id 60 is the bos_token_id": {"bos_token_id": 60},
    "mask_token_id 61 is not in a vocabulary of 61": {"dflash_config": {"mask_token_id": 61}},
    "reach past layer 6": {"dflash_config": {"target_layer_ids": [1, 3, 7]}},
    "distinct, ascending": {"dflash_config": {"target_layer_ids": [1, 3, 3]}},
    "distinct, ascending and": {"dflash_config": {"target_layer_ids": [5, 3, 1]}},
    "not negative": {"dflash_config": {"target_layer_ids": [-1, 3, 5]}},
}


@pytest.mark.parametrize("words", WRONG_CONFIGS)
def test_a_config_that_cannot_be_is_refused_when_read_and_when_exported(words, exported, tmp_path):
    changes = WRONG_CONFIGS[words]
    folder = released(tmp_path / "released", changed(RELEASED, **changes))
    with pytest.raises(UsageError) as read:
        read_drafter(folder)
    assert words in str(read.value) and str(folder / "config.json") in str(read.value)
    assert len(str(read.value).splitlines()) == 1
    edit_config(exported, **changes)
    with pytest.raises(UsageError):
        validate_export(exported)


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("no block_size,", {"block_size": ...}),
        ("no dflash_config.block_size", {"dflash_config": {"block_size": ...}}),
        ("no dflash_config.target_layer_ids", {"dflash_config": {"target_layer_ids": ...}}),
        ("no layer_types", {"layer_types": ...}),
        ("no max_position_embeddings", {"max_position_embeddings": ...}),
        ("no rope_theta", {"rope_theta": ...}),
        ("no rope_parameters.rope_theta", {"rope_parameters": ...}),
        ("no dtype", {"dtype": ...}),
        ("not float32, as config.json says: fc.weight (BF16)", {"dtype": "float32"}),
        ("not float16, as", {"dtype": "float16"}),
    ],
)
def test_what_some_server_needs_must_be_there(words, changes, exported):
    validate_export(exported)
    edit_config(exported, **changes)
    with pytest.raises(UsageError) as refused:
        validate_export(exported)
    assert words in str(refused.value) and len(str(refused.value).splitlines()) == 1


def spoil(tensors):
    tensors["norm.weight"][3] = math.inf


WRONG_TENSORS = {
    "1 missing: norm.weight": lambda tensors: tensors.pop("norm.weight"),
    "22 missing: layers.0.input_layernorm.weight": lambda tensors: [
        tensors.pop(name) for name in KEYS if name.startswith("layers")
    ],
    "1 not a drafter's: embed_tokens.weight": lambda tensors: tensors.update(
        {"embed_tokens.weight": torch.zeros(2, 2)}
    ),
    "1 misshapen: fc.weight is [24, 48], not [24, 72]": lambda tensors: tensors.update(
        {"fc.weight": torch.zeros(H, 48, dtype=torch.bfloat16)}
    ),
    "1 missing: fc.weight; 1 not a drafter's: context_proj.weight": lambda tensors: tensors.update(
        {"context_proj.weight": tensors.pop("fc.weight")}
    ),
    "not all values of norm.weight are finite": spoil,
}


@pytest.mark.parametrize("words", WRONG_TENSORS)
@pytest.mark.parametrize("check", [read_drafter, validate_export])
def test_tensors_that_a_server_would_skip_or_guess_are_named(words, check, exported):
    edit_tensors(exported, WRONG_TENSORS[words])
    with pytest.raises(UsageError) as refused:
        check(exported)
    assert words in str(refused.value) and str(exported / "model.safetensors") in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("check", [read_drafter, validate_export])
def test_a_folder_that_is_none(check, exported, tmp_path):
    with pytest.raises(UsageError, match=r"absent/config\.json"):
        check(tmp_path / "absent")
    whole = (exported / "model.safetensors").read_bytes()
    (exported / "model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(UsageError, match="cut short"):
        check(exported)
    (exported / "model.safetensors").unlink()
    with pytest.raises(UsageError, match=r"has no model\.safetensors"):
        check(exported)
    (exported / "config.json").write_text("{")
    with pytest.raises(UsageError, match="no drafter's"):
        check(exported)
