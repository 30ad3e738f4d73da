"""The command ``dflash``: train drafters."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

import dflash
from dflash.command_line import run_command


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(dflash.__version__, "-V", "--version", prog_name="dflash")
def cli() -> None:
    """Train DFlash drafters: small block-diffusion models that make a large language model decode faster.

    To compare batching strategies before a long run, see dflash-bench --help.
    Any command takes --debug, which shows the traceback of an error.
    """


@cli.command()
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="TOML file with the settings.")
@click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Change one setting.")
@click.option("--windows", type=click.IntRange(1), help="Stop after so many windows.")
@click.option("--out", type=click.Path(path_type=Path), help="New folder of the run.  [default: runs/TIME]")
@click.option("--print-config", is_flag=True, help="Print the settings as TOML and stop.")
def train(
    config_file: Path | None,
    overrides: tuple[str, ...],
    windows: int | None,
    out: Path | None,
    print_config: bool,
) -> int:
    """Train a drafter.

    Without a file the sample preset is used: a small target that comes with dflash, on text from Python's
    standard library, in about ten minutes on two cores. The folder gets config.toml, metrics.jsonl (a line
    for each window and each evaluation) and drafter/ (config.json and model.safetensors, under the names
    that servers load). Ctrl-C ends the run and keeps the weights of the last committed window.

    \b
    dflash train --windows 20
    dflash train --config run.toml --set batching.strategy=random --set training.seed=1 --out runs/random-1
    """
    from dflash.config import dump_config, load_config

    if windows is not None:
        overrides = (*overrides, f"training.windows={windows}")
    config = load_config(config_file, overrides)
    if print_config:
        click.echo(dump_config(config), nl=False)
        return 0
    # Before torch is imported: workers are single-threaded, and idle OpenMP threads would spin.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MKL_NUM_THREADS", "1")
    from dflash.training.trainer import train_drafter

    return train_drafter(config, out)


def main() -> None:
    sys.exit(run_command(cli, "dflash"))
