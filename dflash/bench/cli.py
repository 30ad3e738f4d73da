"""The command ``dflash-bench``: what each batching strategy costs."""

from __future__ import annotations

import sys
import traceback

import click

import dflash
from dflash.bench import settings_file
from dflash.bench.commands.baseline import baseline
from dflash.bench.commands.calibrate import calibrate
from dflash.bench.commands.calibration import aa, power
from dflash.bench.commands.learn import learn
from dflash.bench.commands.plan import plan
from dflash.bench.commands.plugins import plugins
from dflash.bench.commands.predict import predict
from dflash.bench.commands.run import run
from dflash.bench.commands.store import compare, export, show
from dflash.bench.commands.tune import tune
from dflash.command_line import run_command
from dflash.errors import ExitCode


class DefaultCommand(click.Group):
    """A group whose ``run`` is meant where a command line starts with an option, and where a project's file
    says what to run and the command line says nothing."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {"-h", "--help", "-V", "--version"}
        if (args and args[0].startswith("-") and args[0] not in own) or (
            not args and settings_file.has_gate()
        ):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=DefaultCommand,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 ok, 1 regression, 2 usage, 3 a trial failed, 4 inconclusive (under --strict), "
    "5 nothing measured or nothing to compare with, 130 interrupted.",
)
@click.version_option(dflash.__version__, "-V", "--version", prog_name="dflash-bench")
def cli() -> None:
    """Measure what batching strategies cost in speed, and what they do to the gradients.

    \b
    dflash-bench --strategy random,bucketed          compare two strategies (the same as: run --strategy ...)
    dflash-bench --strategy random,bucketed --quick  one pair, in seconds, without an interval
    dflash-bench --strategy bucketed --against main --fail-on tok_s:5%   a gate on a change
    dflash-bench plan --strategy all                 what their plans are made of, without a model
    dflash-bench predict --model qwen3-8b --hardware h100 --topology 6:2   a rate before a GPU is rented
    dflash-bench plugins list                        what strategies there are, with their options
    dflash-bench                                     what [tool.dflash-bench] in pyproject.toml says

    Any command takes --debug, which shows the traceback of an error.
    """


for command in (
    run,
    plan,
    compare,
    show,
    export,
    baseline,
    aa,
    power,
    predict,
    calibrate,
    tune,
    learn,
    plugins,
):
    cli.add_command(command)


def main() -> None:
    try:
        code = run_command(cli, "dflash-bench")
    except Exception:  # Python would exit with 1, and that means a regression
        traceback.print_exc()
        code = ExitCode.TRIAL_FAILED
    sys.exit(code)
