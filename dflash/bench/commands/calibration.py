"""`dflash-bench aa` and `dflash-bench power`: how often the verdicts are wrong, measured by themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from dflash.bench.commands.options import plugin_options
from dflash.bench.output import write

REPEATS, WINDOWS = 10, 8
# The fewest real tokens in as many padded ones: the least work for a drafter.
CHEAPEST = "random"
MODELS = ("quiet", "disturbed", "unsteady", "noisy")


def _calibration_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options: list[Callable[[Any], Any]] = [
        click.option("--repeats", type=click.IntRange(1), help=f"Whole runs to make.  [default: {REPEATS}]"),
        click.option(
            "--simulated",
            type=click.IntRange(1),
            metavar="N",
            help="Draw the times of N runs from models of machines instead, in seconds.",
        ),
        click.option(
            "-s", "--strategy", default=CHEAPEST, show_default=True, help="Strategy to compare with itself."
        ),
        click.option("--fail-on", help="The gate to calibrate, METRIC:PERCENT."),
        click.option("--floor", default="2%", show_default=True, help="Losses below it never fail."),
        click.option(
            "--windows",
            type=click.IntRange(1),
            default=WINDOWS,
            show_default=True,
            help="Measured windows per trial.",
        ),
        click.option("--data", metavar="STORE", help="A token store, or 'sample'.  [default: sample]"),
        click.option("--target", metavar="FOLDER", help="The target, or 'sample'.  [default: sample]"),
        click.option("--config", "config_file", type=click.Path(path_type=Path), help="TOML of the trainer."),
        click.option(
            "--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Change one setting."
        ),
        click.option(
            "--json",
            "json_file",
            type=click.Path(path_type=Path),
            help="Write the rates as JSON ('-': stdout).",
        ),
        plugin_options,
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@_calibration_options
def aa(**options: Any) -> int:
    """Count false alarms: runs in which a strategy meets itself.

    Each run has pairs and looks as under --fail-on, and should find nothing. Ctrl-C keeps the finished runs.
    The last line says how often one failed all the same, and how often that may be, at 95 % confidence.

    \b
    dflash-bench aa --repeats 10        real trials; about three minutes a run
    dflash-bench aa --simulated 10000   the same verdicts on simulated times
    """
    return _calibrate(inject=None, fail_on=options.pop("fail_on") or "tok_s:5%", **options)


@click.command()
@click.option(
    "--inject",
    required=True,
    metavar="METRIC:PERCENT",
    help="What the candidate is to lose: tok_s:10% by work for nothing in the trainer, "
    "padding_efficiency:1% by a worse plan.",
)
@_calibration_options
def power(inject: str, **options: Any) -> int:
    """Count catches: runs in which a strategy meets itself with a loss put in.

    Each run has pairs and looks as under --fail-on, and should fail. Ctrl-C keeps the finished runs. The last
    line says how often one did, and how often that is at the least, at 95 % confidence.

    \b
    dflash-bench power --inject tok_s:10% --repeats 5
    dflash-bench power --inject padding_efficiency:1% --strategy bucketed
    dflash-bench power --inject tok_s:5% --simulated 10000
    """
    from dflash.bench import injection

    metric = injection.parse(inject).metric
    fail_on = options.pop("fail_on") or {"tok_s": "tok_s:5%"}.get(metric, f"{metric}:0.1%")
    return _calibrate(inject=inject, fail_on=fail_on, **options)


def _calibrate(
    inject: str | None,
    fail_on: str,
    repeats: int | None,
    simulated: int | None,
    strategy: str,
    floor: str,
    windows: int,
    data: str | None,
    target: str | None,
    config_file: Path | None,
    overrides: tuple[str, ...],
    json_file: Path | None,
    blocked: tuple[str, ...],
    strict_plugins: bool,
) -> int:
    from dflash.bench.calibration import calibrate, calibrate_simulated
    from dflash.bench.calibration_report import CalibrationProgress, show
    from dflash.bench.gates import Rules, parse_gate, parse_percent
    from dflash.bench.run import RunRequest
    from dflash.config import load_config
    from dflash.plugin_manager import PluginManager

    gate = parse_gate(fail_on)
    if gate.metric.gate_rule == "learning":
        raise click.UsageError(f"--fail-on {fail_on}: gates on learning are not calibrated here")
    rules = Rules(floor=parse_percent(floor, "--floor"))
    if simulated is not None:
        if repeats is not None:
            raise click.UsageError("--repeats and --simulated contradict each other")
        if gate.metric.gate_rule != "paired" or (inject and not inject.startswith(gate.metric.name)):
            raise click.UsageError("--simulated draws times: gate and injection must be about one clock")
        calibration = calibrate_simulated(MODELS, gate, simulated, inject, rules)
    else:
        arms = PluginManager(blocked=blocked, strict=strict_plugins).arms(strategy)
        if len(arms) != 1:
            raise click.UsageError(f"--strategy {strategy}: one strategy meets itself, not {len(arms)}")
        named = [f"data.{key}={value}" for key, value in (("store", data), ("target", target)) if value]
        request = RunRequest(
            arms=arms,
            config=load_config(config_file, (*overrides, *named)),
            windows=windows,
            rules=rules,
            blocked=blocked,
        )
        repeats = repeats or REPEATS
        with CalibrationProgress(repeats) as progress:
            calibration = calibrate(request, gate, repeats, inject, progress, progress.finished)
    if json_file != Path("-"):
        show(calibration)
    if json_file is not None:
        write(json_file, calibration.to_json(indent=2) + b"\n")
    return int(calibration.exit_code)
