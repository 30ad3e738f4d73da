"""The sizes of a target and its drafter, all that their work and their memory follow from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dflash.config import DrafterSettings
from dflash.data.sample import sample_target_dir
from dflash.errors import UsageError
from dflash.models.shape import default_layer_ids, read_json

PAPER = DrafterSettings(layers=5, max_anchors=512, anchor_stride=1, anchor_budget=32_768)
"""The drafter of arXiv 2602.06036, section 5; its anchor budget is ours: 2,048 blocks at once."""


class TargetSizes(msgspec.Struct, frozen=True, kw_only=True):
    """A dense decoder, by the names of its config.json."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected at least 1")

    @property
    def layer_parameters(self) -> int:
        """Weights of the matrices of one decoder layer."""
        own, shared = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        attention = 2 * self.hidden_size * own + 2 * self.hidden_size * shared
        return attention + 3 * self.hidden_size * self.intermediate_size

    @property
    def key_value_parameters(self) -> int:
        """Those of the layer's key and value projections."""
        return 2 * self.hidden_size * self.num_key_value_heads * self.head_dim


# Source of each: the config.json that its authors publish with the weights.
PRESETS = {
    "qwen3-8b": TargetSizes(
        hidden_size=4096,
        intermediate_size=12288,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151936,
    ),
    "qwen3-4b": TargetSizes(
        hidden_size=2560,
        intermediate_size=9728,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151936,
    ),
    "llama-3.1-8b": TargetSizes(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=128256,
    ),
}
SAMPLE = "sample"


@dataclass(frozen=True)
class ModelSizes:
    """A target with the drafter that is trained for it."""

    name: str
    target: TargetSizes
    drafter: DrafterSettings

    @property
    def target_layers_run(self) -> int:
        """Decoder layers up to the last one whose output is read; the others never run."""
        return default_layer_ids(self.target.num_hidden_layers, self.drafter.features)[-1] + 1

    @property
    def feature_width(self) -> int:
        """Numbers of a token's features."""
        return self.drafter.features * self.target.hidden_size

    @property
    def drafter_layer(self) -> TargetSizes:
        """A layer of the drafter: as wide as the target's, but for a feed-forward width of its own."""
        width = self.drafter.intermediate_size or self.target.intermediate_size
        return msgspec.structs.replace(self.target, intermediate_size=width)

    @property
    def drafter_parameters(self) -> int:
        """Trained weights; norms are left out."""
        projection = self.feature_width * self.target.hidden_size
        return projection + self.drafter.layers * self.drafter_layer.layer_parameters


def load_sizes(model: str, drafter: DrafterSettings | None = None) -> ModelSizes:
    """The sizes of a preset, of 'sample', or of a config.json (the file or its folder).

    ``drafter`` is the paper's if it is not given, and the trainer's default for 'sample'.

    Raises:
        UsageError: there is no such model, it is a mixture of experts, or a size is missing or wrong.
    """
    if model in PRESETS:
        return ModelSizes(model, PRESETS[model], drafter or PAPER)
    path = sample_target_dir() if model == SAMPLE else Path(model)
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        known = ", ".join([*PRESETS, SAMPLE])
        raise UsageError(f"no model {model!r}: there are {known}, or give a config.json or its folder")
    default = DrafterSettings() if model == SAMPLE else PAPER
    return ModelSizes(model, _target_sizes(read_json(path), path), drafter or default)


def _target_sizes(config: Mapping[str, Any], path: Path) -> TargetSizes:
    experts = [key for key in config if "expert" in key]
    if experts:
        raise UsageError(
            f"{path} has {experts[0]}: the work of a mixture of experts does not follow from its sizes; "
            "calibrate on the machine instead"
        )
    heads = config.get("num_attention_heads")
    filled = {"num_key_value_heads": heads, **{key: value for key, value in config.items() if value}}
    if isinstance(heads, int) and heads and isinstance(config.get("hidden_size"), int):
        filled.setdefault("head_dim", config["hidden_size"] // heads)
    try:
        return msgspec.convert(filled, TargetSizes)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {str(error).replace('$.', '')}") from error
