"""Settings of a training run: frozen, typed, validated; read from and written to TOML.

Each section is a small struct with its defaults, which together are the sample preset: without any file
they train a drafter for the shipped target on the sample in minutes on two cores.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from dflash.errors import UsageError

Count = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
AttentionName = Literal["auto", "reference", "sdpa", "flex", "grouped"]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every section: immutable, keyword-only, and an unknown key is an error."""


class DataSettings(Section, frozen=True, kw_only=True):
    """What is read."""

    store: str = "sample"
    """a token store, or 'sample' for the corpus made from Python's standard library"""
    target: str = "sample"
    """folder of the target, a causal LM of transformers, or 'sample' for the shipped one"""
    target_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """in which the target runs, and in which its features travel"""
    allow_untrained_target: bool = False
    """for tests of speed: admits a target that predicts the store no better than a guess"""
    overlong: Literal["error", "drop", "truncate"] = "error"
    """what happens to samples longer than the token budget; whatever it is, they are listed"""
    held_out_samples: NotNegative = 128
    """held-out samples that are evaluated, spread evenly over the lengths"""


class BatchingSettings(Section, frozen=True, kw_only=True):
    """How samples become micro-batches and windows."""

    strategy: str = "bucketed"
    """a strategy with its options, e.g. 'bucketed:buckets=8'"""
    token_budget: Count = 4096
    """the most tokens one micro-batch may hold: padded tokens for the padded layout"""
    accumulation: Count = 2
    """micro-batches of one drafter in one window"""
    tail: Literal["spread", "pad", "drop"] = "spread"
    """what becomes of the last, incomplete window"""


class DrafterSettings(Section, frozen=True, kw_only=True):
    """Size of the drafter; widths not given here are the target's."""

    layers: Count = 2
    block_size: Annotated[int, msgspec.Meta(ge=2)] = 16
    features: Count = 5
    """target layers whose outputs are read"""
    intermediate_size: Count | None = None
    mask_token_id: NotNegative | None = None
    """None: the id of '<|mask|>' or '<|MASK|>' in the target's tokenizer"""
    max_anchors: Count = 8
    """most anchors of one sample; the paper has 512"""
    anchor_stride: Count = 16
    """one anchor for so many valid positions, up to the most; the paper has 1"""
    loss: Literal["cross_entropy"] = "cross_entropy"
    """what the drafter is trained for"""
    gamma: Positive = 7.0
    """decay of the label weights; 7, 5, 4 for blocks of 16, 10, 8"""
    anchor_budget: Count = 4096
    """most block tokens that run through the drafter at once"""
    attention: AttentionName = "auto"
    """how blocks attend to context; 'auto' is flex on CUDA and grouped, the fast path of CPUs, elsewhere"""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """of matrix products; weights and their gradients are fp32 always"""
    gradient_checkpointing: bool = False
    """keep the inputs of layers only and compute them again going backward: less memory, a third more time"""


class OptimizerSettings(Section, frozen=True, kw_only=True):
    """AdamW, linear warm-up, cosine decay, clipping."""

    learning_rate: Positive = 3e-3
    beta1: Share = 0.9
    beta2: Share = 0.95
    weight_decay: Annotated[float, msgspec.Meta(ge=0)] = 0.01
    clip_norm: Positive = 1.0
    warmup: Share = 0.04
    final_learning_rate_share: Share = 0.1


class PipelineSettings(Section, frozen=True, kw_only=True):
    """The stages and how they run."""

    engine: Literal["auto", "thread", "process", "inline"] = "auto"
    """auto: a process for each GPU where there are GPUs, threads elsewhere"""
    targets: Count = 1
    drafters: Count = 1
    """train one window together; the only setting here on which results depend, by rounding"""
    prefetch: Count = 1
    depth: Count = 3
    """micro-batches that may wait for each drafter, beside those that the targets work on"""
    devices: str = "auto"
    """auto, cpu, or a device for each worker, targets first: 'cuda:0,cuda:1'; fewer are shared in turn"""
    watchdog_seconds: Positive = 600.0
    """a stage without progress for so long is an error; it has ten times as long to load its model"""

    @property
    def slots(self) -> int:
        """Micro-batches under way for each drafter: ``depth``, and its share of the targets' own.

        A slot is held from dispatch until its micro-batch is trained, so with ``depth`` alone several
        targets would wait for a slot while nothing is ready for a drafter.
        """
        return self.depth + -(-self.targets // self.drafters)


class TrainingSettings(Section, frozen=True, kw_only=True):
    """How long, from which seed, and what is looked at on the way."""

    seed: NotNegative = 0
    epochs: Count = 6
    windows: Count | None = None
    """stop after so many windows, whatever the epochs say"""
    evaluate_every: Count = 100
    """windows between two evaluations of the held-out samples"""
    checkpoint_every: Count = 200
    """windows between two checkpoints; another is written at the end, on SIGTERM and on Ctrl-C"""
    keep_checkpoints: Count = 2
    """the last ones; the one with the least held-out loss is kept beside them"""
    max_bad_samples: NotNegative = 8
    """samples with non-finite features that are left out before the run fails"""
    init: str | None = None
    """folder of a drafter to start from; None: start as the target's last layers"""


class Config(Section, frozen=True, kw_only=True):
    """A whole training run."""

    data: DataSettings = DataSettings()
    batching: BatchingSettings = BatchingSettings()
    drafter: DrafterSettings = DrafterSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    pipeline: PipelineSettings = PipelineSettings()
    training: TrainingSettings = TrainingSettings()

    def __post_init__(self) -> None:
        if self.drafter.anchor_budget < self.drafter.block_size:
            raise ValueError("drafter.anchor_budget is smaller than one block")


def load_config(path: Path | None = None, overrides: tuple[str, ...] = ()) -> Config:
    """Read a TOML file, if there is one, and apply ``section.key=value`` overrides in their order.

    Raises:
        UsageError: the file cannot be read, or a setting is unknown, ill-typed or out of range.
    """
    values: dict[str, Any] = {}
    source = "the settings"
    if path is not None:
        source = str(path)
        try:
            values = tomllib.loads(path.read_text())
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} is not valid TOML: {error}") from error
        values.pop("bench", None)  # one file may serve both commands: that table is dflash-bench's own
    config = _convert(values, source)
    for override in overrides:
        config = _override(config, override)
    return config


def given_settings(path: Path | None, overrides: tuple[str, ...]) -> frozenset[str]:
    """Which settings a file and overrides that :func:`load_config` accepts name, as ``section.key``."""
    values = tomllib.loads(path.read_text()) if path is not None else {}
    in_file = {f"{section}.{key}" for section, keys in values.items() for key in keys}
    return frozenset(in_file | {override.partition("=")[0].strip() for override in overrides})


def dump_config(config: Config) -> str:
    """The settings as TOML that :func:`load_config` reads back to an equal object. None is left out."""
    import tomli_w

    sections = msgspec.to_builtins(config)
    return tomli_w.dumps(
        {
            name: {key: value for key, value in section.items() if value is not None}
            for name, section in sections.items()
        }
    )


def _override(config: Config, override: str) -> Config:
    path, equals, text = override.partition("=")
    section, dot, key = path.strip().partition(".")
    if not (equals and dot and key):
        raise UsageError(f"--set {override!r}: write it as section.key=value, e.g. training.seed=1")
    values = msgspec.to_builtins(config)
    if section not in values:
        raise UsageError(f"--set {override!r}: no section {section!r}; there are {', '.join(values)}")
    if key not in values[section]:
        raise UsageError(f"--set {override!r}: {section} has no {key!r}; it has {', '.join(values[section])}")
    values[section][key] = text.strip()
    return _convert(values, f"--set {override!r}", strict=False)


def _convert(values: dict[str, Any], source: str, strict: bool = True) -> Config:
    try:
        return msgspec.convert(values, Config, strict=strict)
    except msgspec.ValidationError as error:
        raise UsageError(f"{source}: {str(error).replace('$.', '')}") from error
