"""`dflash doctor`: what this machine has, what a run would do on it, and what stands in its way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dflash.commands.topology import topology_settings

if TYPE_CHECKING:
    from dflash.training.diagnosis import Diagnosis


@click.command()
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="TOML file with the settings.")
@click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Change one setting.")
@click.option("--topology", metavar="N:M", help="N targets and M drafters, e.g. 6:2.  [default: 1:1]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(config_file: Path | None, overrides: tuple[str, ...], topology: str | None, as_json: bool) -> int:
    """Look at this machine with a training run in mind.

    Shows devices, memory, threads and versions, which engine and devices a run would take and why, and how
    much memory its slots need. Loads no model and writes nothing. Exit code 2 if the run cannot work, which
    every line marked with ! explains, 0 otherwise.

    \b
    dflash doctor --topology 6:2
    dflash doctor --config run.toml --json
    """
    from dflash.config import load_config
    from dflash.errors import ExitCode

    if topology is not None:
        overrides = (*overrides, *topology_settings(topology))
    config = load_config(config_file, overrides)
    from dflash.training.diagnosis import diagnose

    found = diagnose(config)
    if as_json:
        click.echo(json.dumps(_as_dictionary(found), indent=2))
    else:
        for name, text in _lines(found):
            click.echo(f"{name:12}{text}")
    return ExitCode.OK if found.works else ExitCode.USAGE


def _lines(found: Diagnosis) -> Iterator[tuple[str, str]]:
    from dflash.training.diagnosis import size

    yield "versions", ", ".join(f"{name} {version}" for name, version in found.versions.items())
    yield "can use", ", ".join(f"{name}: {'yes' if can else 'no'}" for name, can in found.can_use.items())
    quota = "" if found.cpu_quota is None else f", of which a quota allows {found.cpu_quota:g}"
    left = "unknown" if found.memory_left is None else size(found.memory_left)
    yield "cpu", f"{found.cores} cores{quota}; memory left {left}"
    for device in found.devices:
        yield (
            device.name,
            f"{device.model}, {size(device.free_bytes)} of {size(device.total_bytes)} are free",
        )
    given = ", ".join(f"{name}={value}" for name, value in found.threads.items() if value is not None)
    yield (
        "threads",
        f"{given or 'nothing is set'}; a run gives each worker one thread, and sets OMP and MKL to 1",
    )
    yield "store", found.store or "none"
    yield "target", found.target or "none"
    if found.placement is not None:
        placement = found.placement
        yield "engine", f"{placement.engine}: {placement.reason}"
        yield "targets", ", ".join(placement.targets)
        yield "drafters", ", ".join(placement.drafters)
    for on, nbytes in found.weights.items():
        yield "weights", f"{on}: at least {size(nbytes)} with optimizers"
    if found.slots is not None:
        yield "slots", str(found.slots)
    for problem in found.problems:
        yield "! problem" if problem.fatal else "note", problem.text
    if not found.problems:
        yield "problems", "none"


def _as_dictionary(found: Diagnosis) -> dict[str, object]:
    from dataclasses import asdict

    slots = None if found.slots is None else {**asdict(found.slots), "total_bytes": found.slots.total_bytes}
    return {"schema_version": 1, **asdict(found), "slots": slots, "works": found.works}
