"""The command ``dflash-bench``: what each batching strategy costs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

import dflash
from dflash.bench.cli_learning import learn
from dflash.bench.cli_options import plugin_options, write
from dflash.bench.cli_plan import plan
from dflash.bench.cli_plugins import plugins
from dflash.command_line import run_command

DEFAULT_ROUNDS, DEFAULT_WINDOWS = 10, 6
QUICK_ROUNDS, QUICK_WINDOWS = 1, 4
THOROUGH_BUDGET = 8192


class DefaultCommand(click.Group):
    """A group whose ``run`` is meant where a command line starts with an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {"-h", "--help", "-V", "--version"}
        if args and args[0].startswith("-") and args[0] not in own:
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=DefaultCommand,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 ok, 1 regression, 2 usage, 3 a trial failed, 4 inconclusive (under --strict), "
    "5 nothing measured, 130 interrupted.",
)
@click.version_option(dflash.__version__, "-V", "--version", prog_name="dflash-bench")
def cli() -> None:
    """Measure what batching strategies cost in speed, and what they do to the gradients.

    \b
    dflash-bench --strategy random,bucketed          compare two strategies (the same as: run --strategy ...)
    dflash-bench --strategy random,bucketed --quick  one pair, in seconds, without an interval
    dflash-bench plan --strategy all                 what their plans are made of, without a model
    dflash-bench plugins list                        what strategies there are, with their options

    Any command takes --debug, which shows the traceback of an error.
    """


@cli.command()
@click.option(
    "-s",
    "--strategy",
    "strategies",
    multiple=True,
    required=True,
    metavar="NAME[:OPTION=VALUE...][,...]",
    help="Strategies to compare, e.g. random,bucketed:buckets=16. Repeatable.",
)
@click.option("--reference", help="The strategy that the others are compared with.  [default: the first]")
@click.option(
    "--rounds", type=click.IntRange(1), help=f"Pairs of trials per comparison.  [default: {DEFAULT_ROUNDS}]"
)
@click.option(
    "--windows", type=click.IntRange(1), help=f"Measured windows per trial.  [default: {DEFAULT_WINDOWS}]"
)
@click.option(
    "--seed", type=click.IntRange(0), help="Seed of plans, anchors and first weights.  [default: 0]"
)
@click.option("--data", metavar="STORE", help="A token store, or 'sample'.  [default: sample]")
@click.option("--target", metavar="FOLDER", help="The target, or 'sample'.  [default: sample]")
@click.option("--token-budget", type=click.IntRange(1), help="Most tokens of a micro-batch.  [default: 4096]")
@click.option("--quick", is_flag=True, help=f"One pair of trials with {QUICK_WINDOWS} windows, no interval.")
@click.option("--thorough", is_flag=True, help=f"Token budget {THOROUGH_BUDGET}: longer and closer to a GPU.")
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="TOML file of the trainer.")
@click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Change one setting.")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Write the run as JSON ('-': stdout)."
)
@plugin_options
@click.pass_context
def run(
    ctx: click.Context,
    strategies: tuple[str, ...],
    reference: str | None,
    rounds: int | None,
    windows: int | None,
    seed: int | None,
    data: str | None,
    target: str | None,
    token_budget: int | None,
    quick: bool,
    thorough: bool,
    config_file: Path | None,
    overrides: tuple[str, ...],
    json_file: Path | None,
    blocked: tuple[str, ...],
    strict_plugins: bool,
) -> int:
    """Train each strategy in fresh processes, in alternating pairs, and compare.

    Every trial trains a drafter for the target through the whole pipeline: a few windows to warm up, then
    windows that stand for the whole epoch's plan. The ratio to the reference carries an exact interval.
    The run is stored under .dflash-bench/; Ctrl-C keeps the pairs that are finished.

    \b
    dflash-bench --strategy sorted,random,bucketed --json out.json
    dflash-bench --strategy bucketed:buckets=4,bucketed:buckets=16 --rounds 20
    """
    from dflash.bench.progress import TrialProgress
    from dflash.bench.report import show
    from dflash.bench.run import RunRequest, run_benchmark
    from dflash.config import load_config
    from dflash.plugin_manager import PluginManager

    if quick and thorough:
        raise click.UsageError("--quick and --thorough contradict each other")
    settings = {
        "batching.token_budget": token_budget or (THOROUGH_BUDGET if thorough else None),
        "training.seed": seed,
        "data.store": data,
        "data.target": target,
    }
    named = tuple(f"{key}={value}" for key, value in settings.items() if value is not None)
    manager = PluginManager(blocked=blocked, strict=strict_plugins)
    request = RunRequest(
        arms=manager.arms(",".join(strategies)),
        config=load_config(config_file, (*overrides, *named)),
        rounds=rounds or (QUICK_ROUNDS if quick else DEFAULT_ROUNDS),
        windows=windows or (QUICK_WINDOWS if quick else DEFAULT_WINDOWS),
        reference=reference,
        blocked=blocked,
    )
    with TrialProgress(request.rounds, len(request.arms)) as progress:
        outcome = run_benchmark(request, progress.started, progress.ended)
    if json_file != Path("-"):
        show(outcome.run, outcome.trials, outcome.stored)
    if json_file is not None:
        write(json_file, outcome.run.to_json(indent=2) + b"\n", f"; the run is in {outcome.stored}")
    if ctx.obj:
        click.echo("\n".join(outcome.tracebacks), err=True)
    return int(outcome.run.exit_code)


cli.add_command(learn)
cli.add_command(plan)
cli.add_command(plugins)


def main() -> None:
    sys.exit(run_command(cli, "dflash-bench"))
