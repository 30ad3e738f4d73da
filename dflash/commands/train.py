"""`dflash train`: train a drafter."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dflash.commands.topology import topology_settings
from dflash.errors import UsageError

if TYPE_CHECKING:
    from dflash.config import Config
    from dflash.testing.faults import Fault
    from dflash.training.resuming import Resumption


@click.command()
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="TOML file with the settings.")
@click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Change one setting.")
@click.option("--init", type=click.Path(path_type=Path), help="Start from the drafter in this folder.")
@click.option("--topology", metavar="N:M", help="N targets and M drafters, e.g. 6:2.  [default: 1:1]")
@click.option(
    "--resume",
    metavar="RUN|auto",
    help="Go on with a run from its folder or a checkpoint; auto: with that of --out, or begin it.",
)
@click.option("--windows", type=click.IntRange(1), help="Stop after so many windows.")
@click.option("--out", type=click.Path(path_type=Path), help="New folder of the run.  [default: runs/TIME]")
@click.option(
    "--telemetry",
    type=click.Path(path_type=Path),
    help="Append telemetry to this file: a line of JSON for each interval, the whole run in the last one.",
)
@click.option(
    "--telemetry-every",
    default="10s",
    show_default=True,
    metavar="SECONDSs|WINDOWSw",
    help="Length of an interval of telemetry, e.g. 60s or 50w.",
)
@click.option(
    "--observe",
    metavar="NAME[:OPTION=VALUE...][,...]",
    help="Tell a plugin what happens, e.g. tensorboard:dir=curves; see dflash-bench plugins list.",
)
@click.option(
    "--inject",
    metavar="FAULT",
    help="For drills: let a worker fail, e.g. kill:target:1@window=3. Anything else lists what there is.",
)
@click.option("--print-config", is_flag=True, help="Print the settings as TOML and stop.")
def train(
    config_file: Path | None,
    overrides: tuple[str, ...],
    init: Path | None,
    topology: str | None,
    resume: str | None,
    windows: int | None,
    out: Path | None,
    telemetry: Path | None,
    telemetry_every: str,
    observe: str | None,
    inject: str | None,
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
        overrides = (*overrides, *topology_settings(topology))
    # Before torch is imported: workers are single-threaded, and idle OpenMP threads would spin.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MKL_NUM_THREADS", "1")
    resumption = None if resume is None else _resumption(resume, out)
    if resumption is not None and config_file is None and (resumption.folder / "config.toml").exists():
        config_file = resumption.folder / "config.toml"
    config = load_config(config_file, overrides)
    config = inherit_settings(config, given_settings(config_file, overrides))
    if print_config:
        click.echo(dump_config(config), nl=False)
        return 0
    from dflash.plugin_manager import PluginManager
    from dflash.training.meter import Every
    from dflash.training.trainer import train_drafter
    from dflash.training.watch import Audience

    fault = None if inject is None else _fault(inject, config)
    audience = Audience(
        every=Every.parse(telemetry_every),
        telemetry=telemetry,
        observers=PluginManager().observers(observe) if observe else (),
    )
    return train_drafter(config, out, resumption, audience, None if fault is None else fault.into)


def _fault(text: str, config: Config) -> Fault:
    from dflash.testing.faults import Fault

    fault = Fault.parse(text)
    fault.check(config)
    return fault


def _resumption(resume: str, out: Path | None) -> Resumption | None:
    from dflash.training import resuming

    if resume == "auto":
        if out is None:
            raise UsageError("--resume auto goes on with the run in --out: give that too")
        return resuming.find_or_begin(out)
    if out is not None:
        raise UsageError(f"--resume {resume} goes on in the folder of that run: leave out --out")
    return resuming.find(Path(resume))
