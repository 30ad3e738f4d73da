"""What `predict` and `tune` share: the data, the model, the machine, and how they become a scene."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from dflash.bench.plan_run import Samples
    from dflash.bench.predict_run import Scene

_OPTIONS: tuple[Callable[..., Any], ...] = (
    click.option(
        "--lengths",
        metavar="FILE|lognormal:...",
        help="Lengths of the samples: .npy, .parquet or .csv, or draws from a distribution.",
    ),
    click.option("--data", metavar="STORE", help="A token store, or 'sample'.  [default: sample]"),
    click.option(
        "--hardware",
        default="cpu-this",
        show_default=True,
        metavar="NAME|FILE.toml",
        help="Machine: rtx-pro-6000, h100, h200, b200, one that 'calibrate' wrote, or a file.",
    ),
    click.option(
        "--model",
        metavar="NAME|PATH",
        help="Target: qwen3-8b, qwen3-4b, llama-3.1-8b, sample, or a config.json.  [default: sample]",
    ),
    click.option(
        "--attention",
        type=click.Choice(["fused", "eager"]),
        default="fused",
        show_default=True,
        help="How the target computes attention; eager writes all scores to memory.",
    ),
    click.option(
        "--max-anchors", type=click.IntRange(1), help="Most anchors of a sample.  [default: the model's]"
    ),
    click.option(
        "--anchor-stride",
        type=click.IntRange(1),
        help="One anchor for so many tokens.  [default: the model's]",
    ),
    click.option(
        "--drafter-layers", type=click.IntRange(1), help="Layers of the drafter.  [default: the model's]"
    ),
    click.option("--price", type=click.FloatRange(0, min_open=True), help="Of a device for an hour."),
    click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the plans."),
    click.option(
        "--overlong",
        type=click.Choice(["error", "drop", "truncate"]),
        default="error",
        show_default=True,
        help="What becomes of samples over the token budget.",
    ),
)


def scene_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that say what is trained, and on what."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def parse_topology(
    ctx: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[int, int] | None:
    """`6:2` is six targets and two drafters."""
    if text is None:
        return None
    targets, colon, drafters = text.partition(":")
    if not (colon and targets.isdecimal() and drafters.isdecimal() and int(targets) and int(drafters)):
        raise click.BadParameter(f"{text!r}: write TARGETS:DRAFTERS, e.g. 6:2")
    return int(targets), int(drafters)


def make_samples(lengths: str | None, data: str | None) -> Samples:
    """The lengths that the options name."""
    from dflash.bench.plan_run import samples_from_lengths, samples_from_store

    if lengths is not None and data is not None:
        raise click.UsageError("--lengths and --data contradict each other")
    return samples_from_store(data or "sample") if lengths is None else samples_from_lengths(lengths)


def make_scene(
    *,
    hardware: str,
    model: str | None,
    attention: str,
    max_anchors: int | None,
    anchor_stride: int | None,
    drafter_layers: int | None,
    price: float | None,
    topology: tuple[int, int],
    accumulation: int,
    depth: int,
    barrier: bool = True,
) -> Scene:
    """The scene that the options describe; UsageError if a name is wrong or nothing was measured for it."""
    import msgspec

    from dflash.bench.predict_run import Scene
    from dflash.simulation import hardware as machines
    from dflash.simulation.pipeline import Topology
    from dflash.simulation.profile import load_profile
    from dflash.simulation.sizes import SAMPLE, load_sizes

    profile = load_profile(hardware)
    sizes = load_sizes(model or SAMPLE)
    changes = {"max_anchors": max_anchors, "anchor_stride": anchor_stride, "layers": drafter_layers}
    given = {name: value for name, value in changes.items() if value is not None}
    sizes = load_sizes(model or SAMPLE, msgspec.structs.replace(sizes.drafter, **given))
    machines.cost_model(profile, sizes, attention)  # type: ignore[arg-type]
    return Scene(
        profile=profile,
        sizes=sizes,
        topology=Topology(
            *topology,
            accumulation=accumulation,
            depth=depth,
            barrier=barrier,
            cores=machines.cores(profile),
        ),
        attention=attention,  # type: ignore[arg-type]
        price=price,
    )
