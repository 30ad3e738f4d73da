"""`dflash-bench tune`: the fastest way to run on some machine, before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dflash.bench.commands.options import plugin_options
from dflash.bench.commands.scene import make_samples, make_scene, scene_options
from dflash.bench.output import write

if TYPE_CHECKING:
    from dflash.simulation.search import Judged

_STRATEGIES = "all,bucketed:buckets=4,bucketed:buckets=16,bucketed:buckets=32,bucketed:windows=stratified"


def _numbers(ctx: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    items = [item.strip() for item in text.split(",")]
    if not all(item.isdecimal() and int(item) > 0 for item in items):
        raise click.BadParameter(f"{text!r}: write whole numbers above 0, e.g. 2,4,8")
    return tuple(sorted({int(item) for item in items}))


@click.command()
@click.option(
    "-s",
    "--strategy",
    "strategies",
    multiple=True,
    default=(_STRATEGIES,),
    metavar="NAME[:OPTION=VALUE...][,...]",
    help="Strategies to consider. Repeatable.  [default: all, and bucketed in several ways]",
)
@click.option(
    "--devices", type=click.IntRange(2), default=8, show_default=True, help="Devices to share out, N + M."
)
@click.option(
    "--max-variance-ratio",
    type=click.FloatRange(1),
    default=2.0,
    show_default=True,
    help="Worst mixture allowed: variance of window mean length / of random draws.",
)
@click.option("--token-budgets", callback=_numbers, default="16384,32768,49152,65536", show_default=True)
@click.option("--accumulations", callback=_numbers, default="1,2,4,8", show_default=True)
@click.option("--depths", callback=_numbers, default="2,3,4", show_default=True)
@click.option(
    "--samples",
    type=click.IntRange(1000),
    default=40_000,
    show_default=True,
    help="Random samples that stand for all.",
)
@scene_options
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path),
    help="Write all that was tried as JSON ('-': stdout).",
)
@plugin_options
def tune(
    strategies: tuple[str, ...],
    devices: int,
    max_variance_ratio: float,
    token_budgets: tuple[int, ...],
    accumulations: tuple[int, ...],
    depths: tuple[int, ...],
    samples: int,
    json_file: Path | None,
    blocked: tuple[str, ...],
    strict_plugins: bool,
    lengths: str | None,
    data: str | None,
    seed: int,
    overlong: str,
    **options: Any,
) -> int:
    """Search strategy, topology, accumulation, depth and token budget for the best predicted speed.

    Speed alone would sort by length, which trains badly: the search keeps to plans whose windows are mixed
    well enough, and shows what a worse or better mixture would cost or give (the Pareto front). Choices that
    do not fit the devices' memory are left out. Ctrl-C ends the search and keeps what it has found.

    \b
    dflash-bench tune --lengths lengths.npy --hardware h200 --model qwen3-8b --devices 8
    dflash-bench tune --hardware rtx-pro-6000 --model qwen3-8b --max-variance-ratio 20 --depths 3

    It ends with the settings to put into a file for `dflash train --config`.
    """
    from rich.console import Console

    from dflash.bench.tune_report import as_json, show
    from dflash.errors import ExitCode, UsageError
    from dflash.plugin_manager import PluginManager
    from dflash.simulation.search import Search, Space

    arms = PluginManager(blocked=blocked, strict=strict_plugins).arms(",".join(strategies))
    scene = make_scene(topology=(1, 1), accumulation=1, depth=1, **options)
    space = Space([(n, devices - n) for n in range(1, devices)], accumulations, depths, token_budgets)
    chosen = make_samples(lengths, data).lengths
    if overlong == "error" and chosen.max() > token_budgets[0]:
        raise UsageError(
            f"the longest sample has {chosen.max()} tokens, the smallest token budget is {token_budgets[0]}: "
            "raise it, or set --overlong to drop or truncate"
        )
    if overlong == "drop":
        chosen = chosen[chosen <= token_budgets[0]]
    search = Search(scene.profile, scene.sizes, scene.attention, chosen, seed=seed, samples=samples)
    console = Console(stderr=True, highlight=False)
    found: list[Judged] = []
    interrupted = False
    with console.status("searching") as status:
        try:
            for number, arm in enumerate(arms, start=1):
                status.update(f"searching {number}/{len(arms)}  {arm.name}, {len(found)} choices simulated")
                for judged in search.run(arm.name, arm.strategy, space):
                    found.append(judged)
                    status.update(
                        f"searching {number}/{len(arms)}  {arm.name}, {len(found)} choices simulated"
                    )
        except KeyboardInterrupt:
            interrupted = True
    if not found:
        raise UsageError("no choice fits the devices' memory and leaves windows enough: widen the search")
    if json_file != Path("-"):
        show(found, scene, max_variance_ratio, interrupted)
    if json_file is not None:
        write(json_file, as_json(found, max_variance_ratio, interrupted))
    return int(ExitCode.INTERRUPTED if interrupted else ExitCode.OK)
