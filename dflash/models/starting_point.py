"""What a run takes from the drafter that it starts from, and what of that must agree with its target."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec

from dflash.config import Config, DrafterSettings
from dflash.errors import UsageError
from dflash.models.published_config import read_config, refuse_taken_id, serving_facts, shape_of
from dflash.models.shape import MASK_TOKENS, DrafterShape, read_json, shape_for_target


def drafter_shape(config: Config, target: Path) -> DrafterShape:
    """The shape of a run's drafter: that of ``training.init``, or one made for the target.

    Raises:
        UsageError: the settings or the target contradict the folder of ``training.init``; no drafter fits
            the target.
    """
    if config.training.init is None:
        return shape_for_target(target, config.drafter)
    folder = Path(config.training.init)
    shape = shape_of(read_config(folder), folder)
    _refuse_contradictions(config.drafter, shape, folder)
    check_target(shape, folder, target)
    return shape


def inherit_settings(config: Config, given: Collection[str]) -> Config:
    """The settings with the sizes of the drafter in ``training.init``, where that is set.

    Args:
        given: settings that somebody asked for, as ``section.key``; the others are defaults, which give way.

    Raises:
        UsageError: one that was asked for contradicts the folder.
    """
    if config.training.init is None:
        return config
    folder = Path(config.training.init)
    shape = shape_of(read_config(folder), folder)
    its = _settings_of(shape)
    left_open = {name: value for name, value in its.items() if f"drafter.{name}" not in given}
    drafter = msgspec.structs.replace(config.drafter, **left_open)
    _refuse_contradictions(drafter, shape, folder)
    return msgspec.structs.replace(config, drafter=drafter)


def check_target(shape: DrafterShape, folder: Path, target: Path) -> None:
    """Refuse a drafter, read from ``folder``, that was made for a target unlike the one in ``target``.

    Raises:
        UsageError: widths, vocabularies or depths differ, or the mask token is another one there.
    """
    config = read_json(target / "config.json")
    fits = {
        "hidden_size": shape.hidden_size,
        "vocab_size": shape.vocab_size,
        "num_hidden_layers": shape.target_layers,
    }
    wrong = [
        f"{name} {value}, not {config.get(name)}" for name, value in fits.items() if config.get(name) != value
    ]
    if wrong:
        raise UsageError(f"the drafter in {folder} is for a target with {'; '.join(wrong)} as in {target}")
    mask = shape.mask_token_id
    refuse_taken_id(mask, serving_facts(target).special_ids)
    tokenizer = target / "tokenizer.json"
    added = read_json(tokenizer).get("added_tokens", []) if tokenizer.is_file() else []
    own = [token["id"] for token in added if token["content"] in MASK_TOKENS]
    if own and mask not in own:
        raise UsageError(
            f"the drafter in {folder} has mask_token_id {mask}, the tokenizer of {target} {own[0]}"
        )


def _settings_of(shape: DrafterShape) -> dict[str, int]:
    """The drafter settings that a shape decides."""
    return {
        "layers": shape.layers,
        "block_size": shape.block_size,
        "features": len(shape.target_layer_ids),
        "intermediate_size": shape.intermediate_size,
        "mask_token_id": shape.mask_token_id,
    }


def _refuse_contradictions(settings: DrafterSettings, shape: DrafterShape, folder: Path) -> None:
    """None, which leaves the choice open, contradicts nothing."""
    for name, value in _settings_of(shape).items():
        asked = getattr(settings, name)
        if asked is not None and asked != value:
            raise UsageError(
                f"drafter.{name} is {asked}, but the drafter in {folder} has {value}: "
                f"leave the setting out or make it {value}"
            )
