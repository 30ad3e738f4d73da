from __future__ import annotations

import json

import pytest

from dflash.config import DrafterSettings
from dflash.errors import UsageError
from dflash.models.shape import default_layer_ids, shape_for_target


@pytest.mark.parametrize(
    ("depth", "count", "ids"),
    [
        # As published for Qwen3-4B and 8B, Qwen3-1.7B, and a 64-layer target.
        (36, 5, (1, 9, 17, 25, 33)),
        (28, 5, (1, 7, 13, 19, 25)),
        (64, 5, (1, 16, 31, 46, 61)),
        (8, 5, (1, 2, 3, 4, 5)),
        (36, 1, (18,)),
    ],
)
def test_layer_ids_are_the_published_ones(depth, count, ids):
    assert default_layer_ids(depth, count) == ids


def test_widths_are_the_targets(small_target):
    shape = shape_for_target(small_target, DrafterSettings(layers=3))
    assert (shape.hidden_size, shape.heads, shape.kv_heads, shape.head_dim) == (24, 4, 2, 8)
    assert (shape.layers, shape.target_layers, shape.target_layer_ids) == (3, 8, (1, 2, 3, 4, 5))
    assert (shape.vocab_size, shape.mask_token_id, shape.block_size) == (97, 96, 16)


def changed(folder, tmp_path, config=None, tokenizer=None):
    for name, change in (("config.json", config), ("tokenizer.json", tokenizer)):
        content = json.loads((folder / name).read_text())
        (tmp_path / name).write_text(json.dumps(content if change is None else change(content)))
    return tmp_path


@pytest.mark.parametrize(
    ("depth", "count", "words"),
    [
        (6, 5, r"layers \[1, 2, 2, 2, 3\], layer 2 more than once: set drafter\.features=3, or take"),
        (4, 5, r"layers \[1, 1, 1, 1, 1\], layer 1 more than once: set drafter\.features=1, or take"),
        (7, 5, r"layers \[1, 2, 2, 3, 4\], layer 2 more than once: set drafter\.features=4, or take"),
        (2, 1, r"layers \[1\], one that no server can read: take a deeper target"),
    ],
)
def test_a_shallow_target_is_refused_with_the_way_out(small_target, tmp_path, depth, count, words):
    """Layers that coincide are one feature; the number that is named works."""
    folder = changed(small_target, tmp_path, lambda config: config | {"num_hidden_layers": depth})
    with pytest.raises(UsageError, match=words):
        shape_for_target(folder, DrafterSettings(features=count))
    if "features=" in words:
        most = int(words.partition("features=")[2][0])
        assert len(set(shape_for_target(folder, DrafterSettings(features=most)).target_layer_ids)) == most


@pytest.mark.parametrize("name", ["pad_token_id", "eos_token_id"])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [1, x]])
def test_the_mask_token_must_be_its_own(small_target, tmp_path, name, wrap):
    folder = changed(small_target, tmp_path, lambda config: config | {name: wrap(96)})
    with pytest.raises(UsageError, match=name):
        shape_for_target(folder, DrafterSettings())


def test_a_tokenizer_without_a_mask_token_needs_the_setting(small_target, tmp_path):
    folder = changed(small_target, tmp_path, tokenizer=lambda _: {"added_tokens": []})
    with pytest.raises(UsageError, match=r"drafter\.mask_token_id"):
        shape_for_target(folder, DrafterSettings())
    assert shape_for_target(folder, DrafterSettings(mask_token_id=7)).mask_token_id == 7


def test_what_is_no_decoder_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        shape_for_target(tmp_path, DrafterSettings())
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="hidden_size"):
        shape_for_target(tmp_path, DrafterSettings())
