"""`dflash-bench learn`: what strategies do to learning, with nothing timed."""

from __future__ import annotations

from pathlib import Path

import click

from dflash.bench.commands.options import plugin_options
from dflash.bench.output import write


@click.command()
@click.option(
    "-s",
    "--strategy",
    "strategies",
    multiple=True,
    required=True,
    metavar="NAME[:OPTION=VALUE...][,...]",
    help="Strategies to compare, e.g. random,step_window,sorted. Repeatable.",
)
@click.option("--reference", help="The strategy that the others are compared with.  [default: the first]")
@click.option(
    "--seeds", type=click.IntRange(1), help="Runs of each strategy; 6 give all verdicts.  [default: 3]"
)
@click.option("--seed", type=click.IntRange(0), help="The first seed.  [default: 0]")
@click.option(
    "--tokens", type=click.IntRange(1), help="Real tokens that a run trains on.  [default: 200 000]"
)
@click.option(
    "--pool-tokens",
    type=click.IntRange(1),
    help="Real tokens of the samples whose gradients are measured.  [default: 120 000]",
)
@click.option("--data", metavar="STORE", help="A token store, or 'sample'.  [default: sample]")
@click.option("--target", metavar="FOLDER", help="The target, or 'sample'.  [default: sample]")
@click.option("--token-budget", type=click.IntRange(1), help="Most tokens of a micro-batch.  [default: 4096]")
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="TOML file of the trainer.")
@click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Change one setting.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write JSON ('-': stdout).")
@plugin_options
def learn(
    strategies: tuple[str, ...],
    reference: str | None,
    seeds: int | None,
    seed: int | None,
    tokens: int | None,
    pool_tokens: int | None,
    data: str | None,
    target: str | None,
    token_budget: int | None,
    config_file: Path | None,
    overrides: tuple[str, ...],
    json_file: Path | None,
    blocked: tuple[str, ...],
    strict_plugins: bool,
) -> int:
    """Compare what strategies do to gradients and to the loss, over equal samples, tokens and blocks.

    Gradients are compared at frozen weights with random windows of the same samples, and drafters are trained
    from several seeds. Speed is what the plans predict. Nothing is timed, so all cores are used.

    \b
    dflash-bench learn --strategy random,step_window,sorted
    dflash-bench learn --strategy random,bucketed --seeds 6 --json learning.json
    """
    from dflash.bench.learning.progress import LearningProgress
    from dflash.bench.learning.report import show
    from dflash.bench.learning.run import POOL_TOKENS, SEEDS, TOKENS, LearningRequest, learning_run
    from dflash.config import load_config
    from dflash.plugin_manager import PluginManager

    settings = {
        "batching.token_budget": token_budget,
        "training.seed": seed,
        "data.store": data,
        "data.target": target,
    }
    named = tuple(f"{key}={value}" for key, value in settings.items() if value is not None)
    request = LearningRequest(
        arms=PluginManager(blocked=blocked, strict=strict_plugins).arms(",".join(strategies)),
        config=load_config(config_file, (*overrides, *named)),
        seeds=seeds or SEEDS,
        tokens=tokens or TOKENS,
        pool_tokens=pool_tokens or POOL_TOKENS,
        reference=reference,
        blocked=blocked,
    )
    with LearningProgress(len(request.arms) * request.seeds) as progress:
        report = learning_run(request, progress.ended)
    if json_file != Path("-"):
        show(report)
    if json_file is not None:
        write(json_file, report.to_json(indent=2) + b"\n")
    return int(report.exit_code)
