"""`dflash-bench plan`: what strategies make of given lengths, without a model."""

from __future__ import annotations

from pathlib import Path

import click

from dflash.bench.commands.options import GateOptions, config_option, gate_options, plugin_options
from dflash.bench.output import write


@click.command()
@click.option(
    "-s",
    "--strategy",
    "strategies",
    multiple=True,
    default=("all",),
    metavar="NAME[:OPTION=VALUE...][,...]",
    help="Strategies to plan with; 'all' is every one of this installation. Repeatable.  [default: all]",
)
@click.option(
    "--lengths",
    metavar="FILE|lognormal:...",
    help="Lengths to plan: .npy, .parquet or .csv, or draws from a distribution.",
)
@click.option("--data", metavar="STORE", help="A token store, or 'sample'.  [default: sample]")
@click.option("--token-budget", type=click.IntRange(1), help="Most tokens of a micro-batch.  [default: 4096]")
@click.option("--baseline", metavar="NAME|PATH", help="The stored baseline that gates compare with.")
@gate_options
@config_option
@click.option("--drafters", type=click.IntRange(1), default=1, show_default=True, help="Drafter workers, M.")
@click.option(
    "--accumulation", type=click.IntRange(1), help="Micro-batches of a drafter in a window, A.  [default: 2]"
)
@click.option("--seed", type=click.IntRange(0), help="Seed of the plans.  [default: 0]")
@click.option("--epoch", type=click.IntRange(0), default=0, show_default=True, help="Which epoch to plan.")
@click.option(
    "--tail",
    type=click.Choice(["spread", "pad", "drop"]),
    help="What becomes of the micro-batches that fill no window.  [default: spread]",
)
@click.option(
    "--overlong",
    type=click.Choice(["error", "drop", "truncate"]),
    help="What becomes of samples over the token budget.  [default: error]",
)
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Write the plans as JSON ('-': stdout)."
)
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), help="Write a row for each strategy.")
@plugin_options
def plan(
    strategies: tuple[str, ...],
    lengths: str | None,
    data: str | None,
    token_budget: int | None,
    baseline: str | None,
    gates: GateOptions,
    config_file: Path | None,
    drafters: int,
    accumulation: int | None,
    seed: int | None,
    epoch: int,
    tail: str | None,
    overlong: str | None,
    json_file: Path | None,
    csv_file: Path | None,
    blocked: tuple[str, ...],
    strict_plugins: bool,
) -> int:
    """Plan an epoch with each strategy, prove the plans right, and say what they are made of.

    How much is padding, how well lengths are mixed, how even the windows are: exact numbers of the whole
    epoch's plan, within seconds, with no model. A strategy that fails is a row with its error; the others
    are planned all the same, and the exit code is 2. Gates compare with a stored baseline, on any machine
    and without a clock. What the trainer's sections of --config say of data and batching holds here, too.

    \b
    dflash-bench plan --lengths lengths.npy --token-budget 49152 --drafters 8 --accumulation 4
    dflash-bench plan --lengths lognormal:median=1800:sigma=0.6:min=65:max=8191:n=902087 --token-budget 49152
    dflash-bench plan --strategy random,bucketed:buckets=6 --data STORE --json plans.json
    dflash-bench plan --lengths l.npy --baseline gate/baseline.json --fail-on padding_efficiency:0.1%
    """
    from dflash.batching.plan import PlanRequest
    from dflash.bench.plan_gate import gated
    from dflash.bench.plan_progress import PlanProgress
    from dflash.bench.plan_report import show, to_csv
    from dflash.bench.plan_run import run_plans, samples_from_lengths, samples_from_store
    from dflash.config import load_config
    from dflash.plugin_manager import PluginManager

    if lengths is not None and data is not None:
        raise click.UsageError("--lengths and --data contradict each other")
    if json_file == csv_file == Path("-"):
        raise click.UsageError("--json and --csv cannot both go to standard output")
    manager = PluginManager(blocked=blocked, strict=strict_plugins)
    arms = manager.arms(",".join(strategies))
    rules = gates.rules(manager, [arm.name for arm in arms])
    config = load_config(config_file)
    request = PlanRequest(
        token_budget=token_budget or config.batching.token_budget,
        seed=config.training.seed if seed is None else seed,
        epoch=epoch,
        drafters=drafters,
        accumulation=accumulation or config.batching.accumulation,
        tail=tail or config.batching.tail,  # type: ignore[arg-type]
    )
    with PlanProgress(len(arms)) as progress:
        samples = (
            samples_from_store(data or config.data.store)
            if lengths is None
            else samples_from_lengths(lengths)
        )
        report = run_plans(
            arms,
            samples,
            request,
            overlong or config.data.overlong,  # type: ignore[arg-type]
            progress.started,
            progress.ended,
        )
    report = gated(report, baseline, rules)
    if Path("-") not in (json_file, csv_file):
        show(report)
    if json_file is not None:
        write(json_file, report.to_json(indent=2) + b"\n")
    if csv_file is not None:
        write(csv_file, to_csv(report).encode())
    return int(report.exit_code)
