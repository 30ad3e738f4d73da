from __future__ import annotations

import json
import shutil

import msgspec
import pytest
from conftest import MASK_ID
from oracles import random_drafter

from dflash.config import Config, DrafterSettings, TrainingSettings, given_settings, load_config
from dflash.errors import UsageError
from dflash.models.export import write_drafter
from dflash.models.shape import shape_for_target
from dflash.models.starting_point import drafter_shape, inherit_settings

SIZES = {"layers": 3, "block_size": 8, "features": 4, "intermediate_size": 16, "mask_token_id": MASK_ID}


@pytest.fixture(scope="module")
def start(small_target, tmp_path_factory):
    """A drafter for the small target whose sizes are not the defaults."""
    folder = tmp_path_factory.mktemp("start")
    write_drafter(folder, random_drafter(shape_for_target(small_target, DrafterSettings(**SIZES))))
    return folder


def settings(start, **drafter):
    return Config(training=TrainingSettings(init=str(start)), drafter=DrafterSettings(**drafter))


def test_defaults_give_way_to_the_folder(start, small_target):
    config = inherit_settings(settings(start), given={"drafter.gamma"})
    assert {name: getattr(config.drafter, name) for name in SIZES} == SIZES
    assert drafter_shape(config, small_target) == shape_for_target(small_target, DrafterSettings(**SIZES))


def test_without_a_folder_nothing_changes(small_target):
    config = Config(drafter=DrafterSettings(features=3))
    assert inherit_settings(config, given=set()) is config
    assert drafter_shape(config, small_target) == shape_for_target(small_target, config.drafter)


@pytest.mark.parametrize("name", SIZES)
def test_a_size_that_was_asked_for_must_be_the_folders(name, start):
    same = settings(start, **{name: SIZES[name]})
    assert inherit_settings(same, given={f"drafter.{name}"}).drafter.layers == 3
    other = settings(start, **{name: SIZES[name] + 1})
    words = f"drafter.{name} is {SIZES[name] + 1}, but the drafter in {start} has {SIZES[name]}"
    with pytest.raises(UsageError, match=words):
        inherit_settings(other, given={f"drafter.{name}"})


def test_a_default_that_was_asked_for_is_no_default(start, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(f"[training]\ninit = {str(start)!r}\n[drafter]\nlayers = {DrafterSettings().layers}\n")
    for path, overrides in ((file, ()), (None, (f"training.init={start}", "drafter.layers = 2"))):
        with pytest.raises(UsageError, match=r"drafter\.layers is 2, but"):
            inherit_settings(load_config(path, overrides), given_settings(path, overrides))


def test_settings_that_nobody_inherited_are_still_held_against_the_folder(start, small_target):
    with pytest.raises(UsageError, match=r"drafter\.layers is 2, but the drafter in .* has 3"):
        drafter_shape(settings(start), small_target)


@pytest.mark.parametrize(
    ("file", "changes", "words"),
    [
        ("config.json", {"hidden_size": 48}, "for a target with hidden_size 24, not 48 as in"),
        ("config.json", {"vocab_size": 98}, "vocab_size 97, not 98"),
        ("config.json", {"num_hidden_layers": 9}, "num_hidden_layers 8, not 9"),
        ("config.json", {"pad_token_id": MASK_ID}, f"mask_token_id {MASK_ID} is the pad_token_id"),
        ("generation_config.json", {"eos_token_id": [1, MASK_ID]}, f"{MASK_ID} is the eos_token_id"),
        (
            "tokenizer.json",
            {"added_tokens": [{"id": 7, "content": "<|MASK|>"}]},
            f"has mask_token_id {MASK_ID}",
        ),
    ],
)
def test_another_target_is_refused(file, changes, words, start, small_target, tmp_path):
    target = tmp_path / "other"
    shutil.copytree(small_target, target)
    known = json.loads((target / file).read_text()) if (target / file).exists() else {}
    (target / file).write_text(json.dumps(known | changes))
    config = inherit_settings(settings(start), given=set())
    with pytest.raises(UsageError) as refused:
        drafter_shape(config, target)
    assert words in str(refused.value) and len(str(refused.value).splitlines()) == 1


def test_the_settings_of_the_run_fit_its_own_record(start):
    """What inherits once inherits nothing more, with all settings given, as from a run's config.toml."""
    config = inherit_settings(settings(start), given=set())
    every = {f"drafter.{name}" for name in msgspec.structs.asdict(config.drafter)}
    assert inherit_settings(config, every) == config
