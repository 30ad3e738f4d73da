"""`dflash train`: train a drafter."""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.command()
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="TOML file with the settings.")
@click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Change one setting.")
@click.option("--init", type=click.Path(path_type=Path), help="Start from the drafter in this folder.")
@click.option("--windows", type=click.IntRange(1), help="Stop after so many windows.")
@click.option("--out", type=click.Path(path_type=Path), help="New folder of the run.  [default: runs/TIME]")
@click.option("--print-config", is_flag=True, help="Print the settings as TOML and stop.")
def train(
    config_file: Path | None,
    overrides: tuple[str, ...],
    init: Path | None,
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
    dflash train --init runs/random-1/drafter --set optimizer.learning_rate=1e-3
    """
    from dflash.config import dump_config, given_settings, load_config
    from dflash.models.starting_point import inherit_settings

    if init is not None:
        overrides = (*overrides, f"training.init={init}")
    if windows is not None:
        overrides = (*overrides, f"training.windows={windows}")
    config = load_config(config_file, overrides)
    config = inherit_settings(config, given_settings(config_file, overrides))
    if print_config:
        click.echo(dump_config(config), nl=False)
        return 0
    # Before torch is imported: workers are single-threaded, and idle OpenMP threads would spin.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MKL_NUM_THREADS", "1")
    from dflash.training.trainer import train_drafter

    return train_drafter(config, out)
