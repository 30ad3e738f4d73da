from __future__ import annotations

import pytest

from dflash.config import Config, dump_config, load_config
from dflash.errors import UsageError


def test_toml_there_and_back(tmp_path):
    config = load_config(None, ("training.windows=12", "batching.strategy=bucketed:buckets=3"))
    file = tmp_path / "run.toml"
    file.write_text(dump_config(config))
    assert load_config(file) == config
    assert load_config() == Config()


def test_overrides_come_after_the_file_and_in_their_order(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("[training]\nseed = 1\nepochs = 7\n")
    config = load_config(file, ("training.seed=2", "training.seed=3"))
    assert (config.training.seed, config.training.epochs) == (3, 7)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.seed", "section.key=value"),
        ("seed=1", "section.key=value"),
        ("nothing.seed=1", "no section 'nothing'; there are data, batching"),
        ("training.sed=1", "training has no 'sed'; it has seed, epochs"),
        ("training.seed=one", "int.*training.seed"),
        ("training.seed=-1", ">= 0.*training.seed"),
        ("batching.tail=none", "batching.tail"),
        ("drafter.anchor_budget=3", "smaller than one block"),
    ],
)
def test_a_wrong_override_says_what_and_where(override, words):
    with pytest.raises(UsageError, match=words) as refused:
        load_config(None, (override,))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[training]\nsed = 1\n", "run.toml: .*sed"),
        ("[training]\nseed = 'x'\n", "run.toml: .*training.seed"),
        ("[training\n", "not valid TOML"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, text, words):
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=words):
        load_config(file)
    with pytest.raises(UsageError, match="cannot read"):
        load_config(tmp_path / "absent.toml")


def test_settings_do_not_change():
    with pytest.raises(AttributeError):
        Config().training.seed = 3  # type: ignore[misc]
