"""The sizes of a drafter, and how they follow from its target."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash.config import DrafterSettings
from dflash.errors import UsageError

MASK_TOKENS = ("<|mask|>", "<|MASK|>")


@dataclass(frozen=True, kw_only=True)
class DrafterShape:
    """Sizes of a drafter; all that its tensors' shapes follow from."""

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    block_size: int
    mask_token_id: int
    target_layers: int
    """depth of the target, not of the drafter"""
    target_layer_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        ids = self.target_layer_ids
        if sorted(set(ids)) != list(ids) or not ids or ids[0] < 0:
            raise UsageError(f"target_layer_ids {list(ids)} must be distinct, ascending and not negative")
        if ids[-1] > self.target_layers - 2:
            # The output of the last layer is only ever seen after the final norm, and servers that read
            # a feature before the next layer cannot reach it.
            raise UsageError(
                f"target_layer_ids {list(ids)} reach past layer {self.target_layers - 2}, "
                f"the last one usable in a target of {self.target_layers} layers"
            )
        if self.heads % self.kv_heads:
            raise UsageError(f"{self.heads} attention heads cannot share {self.kv_heads} key/value heads")
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise UsageError(
                f"mask_token_id {self.mask_token_id} is not in a vocabulary of {self.vocab_size}"
            )


def default_layer_ids(target_layers: int, count: int) -> tuple[int, ...]:
    """0-based decoder layers ``round(1 + i * (L - 4) / (count - 1))``; the middle one for a count of 1.

    Source: build_target_layer_ids of the published drafters. In a shallow target they can coincide, which
    :func:`shape_for_target` refuses: five equal features are one feature.
    """
    if count == 1:
        return (target_layers // 2,)
    return tuple(round(1 + i * (target_layers - 4) / (count - 1)) for i in range(count))


def shape_for_target(folder: Path, settings: DrafterSettings) -> DrafterShape:
    """A drafter as wide as the target in ``folder``, with the depth and blocks of ``settings``.

    Raises:
        UsageError: the folder's config.json lacks a size, no mask token is known, or the sizes do not fit.
    """
    config = read_json(folder / "config.json")
    try:
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        rope = config.get("rope_parameters") or config
        return DrafterShape(
            hidden_size=hidden,
            intermediate_size=settings.intermediate_size or config["intermediate_size"],
            layers=settings.layers,
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or hidden // heads,
            vocab_size=config["vocab_size"],
            rms_norm_eps=config["rms_norm_eps"],
            rope_theta=float(rope["rope_theta"]),
            block_size=settings.block_size,
            mask_token_id=_mask_token_id(folder, config, settings),
            target_layers=config["num_hidden_layers"],
            target_layer_ids=_layer_ids(folder, config["num_hidden_layers"], settings.features),
        )
    except KeyError as error:
        raise UsageError(
            f"{folder}/config.json has no {error}: it is no decoder that a drafter fits"
        ) from None


def _layer_ids(folder: Path, target_layers: int, count: int) -> tuple[int, ...]:
    """The default layers, if they are distinct and within reach."""
    ids = default_layer_ids(target_layers, count)
    if _usable(ids, target_layers):
        return ids
    most = max(
        (n for n in range(1, count) if _usable(default_layer_ids(target_layers, n), target_layers)), default=0
    )
    way_out = f"set drafter.features={most}, or " if most else ""
    twice = sorted({layer for layer in ids if ids.count(layer) > 1})
    what = f"layer {', '.join(map(str, twice))} more than once" if twice else "one that no server can read"
    raise UsageError(
        f"{folder}: drafter.features={count} of a target of {target_layers} layers are layers {list(ids)}, "
        f"{what}: {way_out}take a deeper target"
    )


def _usable(ids: tuple[int, ...], target_layers: int) -> bool:
    return len(set(ids)) == len(ids) and ids[0] >= 0 and ids[-1] <= target_layers - 2


def _mask_token_id(folder: Path, config: dict[str, Any], settings: DrafterSettings) -> int:
    """The id that stands for 'not drafted yet'. A wrong one makes a drafter that no server can use."""
    found = settings.mask_token_id
    if found is None:
        added = read_json(folder / "tokenizer.json").get("added_tokens", [])
        found = next((token["id"] for token in added if token["content"] in MASK_TOKENS), None)
    if found is None:
        raise UsageError(
            f"{folder}/tokenizer.json has none of {', '.join(MASK_TOKENS)}: "
            "set drafter.mask_token_id to an id that never occurs in text"
        )
    taken = {name: config.get(name) for name in ("pad_token_id", "eos_token_id", "bos_token_id")}
    for name, value in taken.items():
        if found in (value if isinstance(value, list) else [value]):
            raise UsageError(f"mask_token_id {found} is the target's {name}: it must be an id of its own")
    return found


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file of a target's folder; UsageError if it cannot be read."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read ({error}): give the folder of a target") from error
    return content
