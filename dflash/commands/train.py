"""`dflash train`: train a drafter."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dflash.errors import UsageError

if TYPE_CHECKING:
    from dflash.training.resuming import Resumption


@click.command()
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="TOML file with the settings.")
@click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Change one setting.")
@click.option("--init", type=click.Path(path_type=Path), help="Start from the drafter in this folder.")
@click.option("--topology", metavar="N:M", help="N targets and M drafters, e.g. 6:2.  [default: 1:1]")
@click.option(
    "--resume",
    metavar="RUN|auto",
    help="Go on with a run from its folder or a checkpoint; auto: that of --out.",
)
@click.option("--windows", type=click.IntRange(1), help="Stop after so many windows.")
@click.option("--out", type=click.Path(path_type=Path), help="New folder of the run.  [default: runs/TIME]")
@click.option("--print-config", is_flag=True, help="Print the settings as TOML and stop.")
def train(
    config_file: Path | None,
    overrides: tuple[str, ...],
    init: Path | None,
    topology: str | None,
    resume: str | None,
    windows: int | None,
    out: Path | None,
    print_config: bool,
) -> int:
    """Train a drafter.

    Without a file the sample preset is used: a small target that comes with dflash, on text from Python's
    standard library, in about ten minutes on two cores. The folder gets config.toml, metrics.jsonl (a line
    for each window and each evaluation) and drafter/ (config.json and model.safetensors, under the names
    that servers load). Ctrl-C or SIGTERM finishes the window at hand and writes a checkpoint; a run that was
    stopped or killed goes on with --resume, to the last bit as if nothing had happened.

    \b
    dflash train --windows 20
    dflash train --resume runs/20260101-120000
    dflash train --topology 6:2 --set pipeline.engine=process
    dflash train --config run.toml --set batching.strategy=random --set training.seed=1 --out runs/random-1
    dflash train --init runs/random-1/drafter --set optimizer.learning_rate=1e-3
    """
    from dflash.config import dump_config, given_settings, load_config
    from dflash.models.starting_point import inherit_settings

    if init is not None:
        overrides = (*overrides, f"training.init={init}")
    if windows is not None:
        overrides = (*overrides, f"training.windows={windows}")
    if topology is not None:
        overrides = (*overrides, *_topology(topology))
    resumption = None if resume is None else _resumption(resume, out)
    if resumption is not None and config_file is None:
        config_file = resumption.folder / "config.toml"
    config = load_config(config_file, overrides)
    config = inherit_settings(config, given_settings(config_file, overrides))
    if print_config:
        click.echo(dump_config(config), nl=False)
        return 0
    # Before torch is imported: workers are single-threaded, and idle OpenMP threads would spin.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MKL_NUM_THREADS", "1")
    from dflash.training.trainer import train_drafter

    return train_drafter(config, out, resumption)


def _topology(text: str) -> tuple[str, str]:
    targets, colon, drafters = text.partition(":")
    if not (colon and targets.isdigit() and drafters.isdigit() and int(targets) and int(drafters)):
        raise UsageError(f"--topology {text!r}: write it as targets:drafters, e.g. 6:2")
    return f"pipeline.targets={targets}", f"pipeline.drafters={drafters}"


def _resumption(resume: str, out: Path | None) -> Resumption | None:
    from dflash.training import resuming

    if resume != "auto":
        found = resuming.find(Path(resume))
        if found is None:
            raise UsageError(f"--resume {resume}: the run has no checkpoint yet; start it again")
        return found
    if out is None:
        raise UsageError("--resume auto goes on with the run in --out: give that too")
    return resuming.find(out) if out.exists() else None
