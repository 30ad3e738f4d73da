"""`dflash-bench run`: train strategies in pairs of trials, compare, and hold gates."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from dflash.bench.commands.options import (
    GateOptions,
    config_option,
    gate_options,
    parse_seconds,
    plugin_options,
)
from dflash.bench.output import append, github_summary_path, write

# A trial takes three seconds before it measures anything. On a shared machine the rates of two trials of 4
# windows differ by 13 %, of 8 by 8 % and of 12 by 7 %, so that more windows buy more than more trials do.
DEFAULT_ROUNDS, DEFAULT_WINDOWS = 10, 10
QUICK_ROUNDS, QUICK_WINDOWS = 1, 4
THOROUGH_BUDGET = 8192


@click.command()
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
    "--against",
    metavar="REV",
    help="Compare each strategy with itself at another git revision, measured in the same run.",
)
@click.option(
    "--baseline",
    metavar="NAME|PATH",
    help="Compare what is exact with a stored baseline; clocks against one are advice only.",
)
@gate_options
@click.option(
    "--rounds",
    type=click.IntRange(1),
    help=f"Pairs of trials per comparison.  [default: {DEFAULT_ROUNDS}, or as gates on clocks need: 10, 15 "
    "or 20]",
)
@click.option(
    "--max-time", callback=parse_seconds, metavar="TIME", help="Begin no pair after so long, e.g. 4m."
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
@click.option(
    "--learning",
    is_flag=True,
    help="Add learning trials: what each strategy does to gradients and losses. They use all cores, after "
    "the timed ones.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1),
    help="Learning trials of each strategy; 6 give all verdicts.  [default: 3]",
)
@click.option("--quick", is_flag=True, help=f"One pair of trials with {QUICK_WINDOWS} windows, no interval.")
@click.option("--thorough", is_flag=True, help=f"Token budget {THOROUGH_BUDGET}: longer and closer to a GPU.")
@config_option
@click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Change one setting.")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Write the run as JSON ('-': stdout)."
)
@click.option("--junit", "junit_file", type=click.Path(path_type=Path), help="Write the gates as JUnit XML.")
@click.option(
    "--markdown",
    "markdown_file",
    type=click.Path(path_type=Path),
    help="Write the report as Markdown ('-': stdout).",
)
@click.option("--github-summary", is_flag=True, help="Add the report to the summary of the GitHub job.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but the report.")
@click.option("-v", "--verbose", is_flag=True, help="Show every comparison, not only the speed.")
@plugin_options
@click.pass_context
def run(
    ctx: click.Context,
    strategies: tuple[str, ...],
    reference: str | None,
    against: str | None,
    baseline: str | None,
    gates: GateOptions,
    rounds: int | None,
    max_time: float | None,
    windows: int | None,
    seed: int | None,
    data: str | None,
    target: str | None,
    token_budget: int | None,
    learning: bool,
    seeds: int | None,
    quick: bool,
    thorough: bool,
    config_file: Path | None,
    overrides: tuple[str, ...],
    json_file: Path | None,
    junit_file: Path | None,
    markdown_file: Path | None,
    github_summary: bool,
    quiet: bool,
    verbose: bool,
    blocked: tuple[str, ...],
    strict_plugins: bool,
) -> int:
    """Train each strategy in fresh processes, in alternating pairs, and compare.

    Every trial trains a drafter for the target through the whole pipeline: a few windows to warm up, then
    windows that stand for the whole epoch's plan. The ratio to the reference carries an exact interval.
    The run is stored under .dflash-bench/; Ctrl-C keeps the pairs that are finished.

    \b
    dflash-bench --strategy sorted,random,bucketed --json out.json
    dflash-bench --strategy random,bucketed --fail-on tok_s:5% --max-time 4m
    dflash-bench --strategy bucketed --against main --fail-on tok_s:5% --fail-on padding_efficiency:0.1%
    dflash-bench --strategy random,mine --learning --fail-on design_effect:25%

    Gates on clocks are judged after 10, 15 and 20 pairs, and the first look that decides all of them is the
    last; a fixed number of --rounds is judged once. Gates on learning are judged over --seeds, and their
    percentage is a margin: what is worse by it fails, what may be is inconclusive.
    """
    from dflash.bench.learning.run import SEEDS
    from dflash.bench.progress import TrialProgress
    from dflash.bench.report import show
    from dflash.bench.run import RunRequest, run_benchmark
    from dflash.config import load_config
    from dflash.plugin_manager import PluginManager

    if quick and thorough:
        raise click.UsageError("--quick and --thorough contradict each other")
    if quiet and verbose:
        raise click.UsageError("--quiet and --verbose contradict each other")
    if against is not None and reference is not None:
        raise click.UsageError("--against and --reference contradict each other: one partner for each arm")
    if learning and against is not None:
        raise click.UsageError("--learning compares strategies of one revision: leave out --against")
    if seeds is not None and not learning:
        raise click.UsageError("--seeds is the number of learning trials: add --learning")
    if json_file == markdown_file == Path("-"):
        raise click.UsageError("--json and --markdown cannot both go to standard output")
    summary = github_summary_path() if github_summary else None
    settings = {
        "batching.token_budget": token_budget or (THOROUGH_BUDGET if thorough else None),
        "training.seed": seed,
        "data.store": data,
        "data.target": target,
    }
    named = tuple(f"{key}={value}" for key, value in settings.items() if value is not None)
    manager = PluginManager(blocked=blocked, strict=strict_plugins)
    arms = manager.arms(",".join(strategies))
    request = RunRequest(
        arms=arms,
        config=load_config(config_file, (*overrides, *named)),
        rounds=rounds or (QUICK_ROUNDS if quick else None),
        windows=windows or (QUICK_WINDOWS if quick else DEFAULT_WINDOWS),
        reference=reference,
        against=against,
        baseline=baseline,
        rules=gates.rules(manager, [arm.name for arm in arms]),
        max_time=max_time,
        learning_seeds=(seeds or SEEDS) if learning else 0,
        blocked=blocked,
        command_line=sys.argv,
    )
    duels = len(arms) if against is not None else max(1, len(arms) - 1)
    with TrialProgress(request.looks.at[-1] * duels, level=verbose - quiet) as progress:
        outcome = run_benchmark(request, progress, progress.learned)
    kept = f"; the run is in {outcome.stored}"
    if Path("-") not in (json_file, markdown_file):
        show(outcome.run, outcome.trials, outcome.stored, verbose=verbose)
    if json_file is not None:
        write(json_file, outcome.run.to_json(indent=2) + b"\n", kept)
    if markdown_file is not None or summary is not None:
        from dflash.bench.markdown import render

        text = render(outcome.run, outcome.trials)
        if markdown_file is not None:
            write(markdown_file, text.encode(), kept)
        if summary is not None:
            append(summary, text, kept)
    if junit_file is not None:
        from dflash.bench import junit

        junit.write(outcome.run, outcome.trials, junit_file)
    if ctx.obj:
        click.echo("\n".join(outcome.tracebacks), err=True)
    return int(outcome.run.exit_code)
