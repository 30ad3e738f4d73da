"""config.json of a published drafter: what z-lab's class, SGLang and vLLM read, and what we can run of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from dflash.errors import UsageError
from dflash.models.shape import DrafterShape, default_layer_ids, read_json

ARCHITECTURE = "DFlashDraftModel"
SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")

Size = Annotated[int, msgspec.Meta(ge=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
TokenIds = int | list[int] | None
Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class ServingFacts:
    """What servers read in a drafter's config.json and only its target knows."""

    max_position_embeddings: int | None = None
    special_ids: dict[str, TokenIds] = field(default_factory=dict)
    """by the names in SPECIAL_IDS, those that the target has"""


def serving_facts(target: Path) -> ServingFacts:
    """Read a target's folder.

    Raises:
        UsageError: its config.json cannot be read.
    """
    config = read_json(target / "config.json")
    generation = target / "generation_config.json"
    later = read_json(generation) if generation.is_file() else {}
    ids = {name: _ids(config.get(name), later.get(name)) for name in SPECIAL_IDS}
    length = config.get("max_position_embeddings")
    return ServingFacts(
        length, {name: found[0] if len(found) == 1 else found for name, found in ids.items() if found}
    )


def _ids(*sources: TokenIds) -> list[int]:
    """Each id once: a chat model often ends its texts with another token than its config.json says."""
    lists = [source if isinstance(source, list) else [source] for source in sources if source is not None]
    return list(dict.fromkeys(token for tokens in lists for token in tokens))


def refuse_taken_id(mask_token_id: int, special_ids: dict[str, TokenIds]) -> None:
    """Raise UsageError where the mask is the target's padding, or begins or ends its texts."""
    for name, taken in special_ids.items():
        if mask_token_id in (taken if isinstance(taken, list) else [taken]):
            raise UsageError(f"mask_token_id {mask_token_id} is the {name}: it must be an id of its own")


def published_config(shape: DrafterShape, facts: ServingFacts, dtype: str) -> dict[str, Any]:
    """config.json with the keys of the released checkpoints.

    Loaders differ in where they look and in their defaults, so what can be said is said, in both places
    where there are two: ``block_size``; the rotary base for transformers 4 (``rope_theta``) and 5
    (``rope_parameters``). There is no ``auto_map``: it would name a file of code that the folder lacks.
    """
    known = facts.max_position_embeddings
    length = {} if known is None else {"max_position_embeddings": known}
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        "block_size": shape.block_size,
        "dflash_config": {
            "block_size": shape.block_size,
            "mask_token_id": shape.mask_token_id,
            "target_layer_ids": list(shape.target_layer_ids),
        },
        "num_target_layers": shape.target_layers,
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "layer_types": ["full_attention"] * shape.layers,
        "sliding_window": None,
        "use_sliding_window": False,
        "max_window_layers": shape.layers,
        **length,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "rms_norm_eps": shape.rms_norm_eps,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "vocab_size": shape.vocab_size,
        **facts.special_ids,
        "dtype": dtype,
    }


class DraftingSection(msgspec.Struct, kw_only=True, frozen=True):
    """The part ``dflash_config``. Keys that are not listed do not matter to us."""

    mask_token_id: int
    target_layer_ids: tuple[int, ...] | None = None
    block_size: Annotated[int, msgspec.Meta(ge=2)] | None = None
    causal: bool | None = None
    use_swa: bool | None = None


class PublishedConfig(msgspec.Struct, kw_only=True, frozen=True):
    """What is read of a config.json. Keys that are not listed do not matter to us."""

    architectures: tuple[str, ...]
    dflash_config: DraftingSection
    num_target_layers: Size
    num_hidden_layers: Size
    hidden_size: Size
    intermediate_size: Size
    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: Size
    vocab_size: Size
    rms_norm_eps: Positive
    block_size: Annotated[int, msgspec.Meta(ge=2)] | None = None
    hidden_act: str = "silu"
    layer_types: tuple[str, ...] | None = None
    use_sliding_window: bool | None = None
    is_causal: bool | None = None
    attention_bias: bool = False
    rope_theta: Positive | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    max_position_embeddings: Size | None = None
    bos_token_id: TokenIds = None
    eos_token_id: TokenIds = None
    pad_token_id: TokenIds = None
    dtype: str | None = None

    def facts(self) -> ServingFacts:
        """What of the target is repeated here."""
        ids = {name: getattr(self, name) for name in SPECIAL_IDS}
        return ServingFacts(
            self.max_position_embeddings, {name: value for name, value in ids.items() if value is not None}
        )


def drafter_folder(folder: Path) -> Path:
    """``folder`` itself, or the drafter in the folder of a training run."""
    return folder / "drafter" if (folder / "drafter" / "config.json").is_file() else folder


def read_config(folder: Path) -> PublishedConfig:
    """config.json of a drafter's folder, or of a run's drafter.

    Raises:
        UsageError: it cannot be read, lacks a key or has one of another type.
    """
    path = drafter_folder(folder) / "config.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=PublishedConfig)
    except OSError as error:
        raise UsageError(f"cannot read {path} ({error.strerror}): give the folder of a drafter") from error
    except msgspec.DecodeError as error:  # a ValidationError is one
        raise UsageError(f"{path} is no drafter's: {str(error).replace('$.', '')}") from error


def shape_of(config: PublishedConfig, source: Path) -> DrafterShape:
    """The sizes in ``config``, which was read from the folder ``source``.

    Raises:
        UsageError: the sizes do not fit together, two places disagree, or the drafter needs something that
            is not built here: scaled rotary angles, sliding windows, biases, causal blocks.
    """
    drafting = config.dflash_config
    try:
        _refuse_other_models(config)
        refuse_taken_id(drafting.mask_token_id, config.facts().special_ids)
        ids = drafting.target_layer_ids
        return DrafterShape(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            vocab_size=config.vocab_size,
            rms_norm_eps=config.rms_norm_eps,
            rope_theta=_rope_theta(config),
            block_size=_same("block_size", config.block_size, drafting.block_size),
            mask_token_id=drafting.mask_token_id,
            target_layers=config.num_target_layers,
            # The released class takes a feature for each of its layers where the ids are not given.
            target_layer_ids=default_layer_ids(config.num_target_layers, config.num_hidden_layers)
            if ids is None
            else ids,
        )
    except UsageError as error:
        raise UsageError(f"{source}/config.json: {error}") from None


def check_complete(config: PublishedConfig, source: Path) -> None:
    """Some loader has no default, or another one, for what may be left out elsewhere.

    Raises:
        UsageError: a key is missing, or the type of the tensors is not one that servers load.
    """
    rope, drafting = config.rope_parameters or {}, config.dflash_config
    keys = {
        "block_size": config.block_size,
        "dflash_config.block_size": drafting.block_size,
        "dflash_config.target_layer_ids": drafting.target_layer_ids,
        "layer_types": config.layer_types,
        "max_position_embeddings": config.max_position_embeddings,
        "rope_theta": config.rope_theta,
        "rope_parameters.rope_theta": rope.get("rope_theta"),
        "dtype": config.dtype,
    }
    missing = [name for name, value in keys.items() if value is None]
    if missing:
        raise UsageError(f"{source}/config.json has no {', '.join(missing)}, which servers need")


def _refuse_other_models(config: PublishedConfig) -> None:
    if config.architectures != (ARCHITECTURE,):
        raise UsageError(f"architectures is {list(config.architectures)}, not ['{ARCHITECTURE}']")
    if config.hidden_act != "silu":
        raise UsageError(f"hidden_act is {config.hidden_act!r}; only 'silu' is supported")
    if config.attention_bias:
        raise UsageError("attention_bias is true; drafters with biases are not supported")
    if config.is_causal or config.dflash_config.causal:
        raise UsageError("its blocks are causal; only blocks that see all of themselves are supported")
    types = config.layer_types
    if types is not None and len(types) != config.num_hidden_layers:
        raise UsageError(f"layer_types has {len(types)} entries for {config.num_hidden_layers} layers")
    if config.use_sliding_window or config.dflash_config.use_swa or set(types or ()) - {"full_attention"}:
        raise UsageError("it has sliding windows; only full attention is supported")


def _rope_theta(config: PublishedConfig) -> float:
    base: float | None = None
    for rope in (config.rope_parameters or {}, config.rope_scaling or {}):
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default":
            raise UsageError(f"its rotary angles are scaled ({kind!r}); only plain ones are supported")
        found = rope.get("rope_theta")
        if found is not None:
            base = float(found)
    return _same("rope_theta", config.rope_theta, base)


def _same(name: str, one: Number | None, other: Number | None) -> Number:
    """The value of a key that may stand in two places."""
    value = other if one is None else one
    if value is None:
        raise UsageError(f"{name} is missing")
    if other is not None and other != value:
        raise UsageError(f"{name} is {one} in one place and {other} in another")
    return value
