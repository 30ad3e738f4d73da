"""`dflash-bench baseline`: what a project holds its exact figures against."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dflash.bench.baseline import Baseline


@click.group(no_args_is_help=True)
def baseline() -> None:
    """Save, list, show, promote and remove stored baselines.

    A baseline is a small JSON file: NAME is one under .dflash-bench/baselines/, PATH (with a / or .json) one
    that a project commits. It holds what is exact: the same lengths, request and code give it on every
    machine. SOURCE is a stored run, `last` or the start of its name, or a file that --json of run or plan
    wrote ('-': stdin).

    \b
    dflash-bench plan --lengths lengths.npy --json - | dflash-bench baseline save gate/baseline.json -
    dflash-bench plan --lengths lengths.npy --baseline gate/baseline.json --fail-on padding_efficiency:0.1%
    """


@baseline.command()
@click.argument("name", metavar="NAME|PATH")
@click.argument("source", default="last")
def save(name: str, source: str) -> None:
    """Make a new baseline of SOURCE, the last run by default."""
    from dflash.bench import baseline as baselines
    from dflash.errors import UsageError

    label, path = baselines.location(name)
    if path.exists():
        raise UsageError(f"{path}: there is a {label} already; dflash-bench baseline promote changes it")
    made = _from(source)
    baselines.write(made, path)
    click.echo(f"saved {', '.join(made.strategies)} in {path}")


@baseline.command()
@click.argument("name", metavar="NAME|PATH")
@click.argument("source", default="last")
def promote(name: str, source: str) -> None:
    """Make SOURCE the new content of a baseline, and say what changes."""
    from dflash.bench import baseline as baselines

    label, path = baselines.location(name)
    before, after = baselines.read(path), _from(source)
    baselines.write(after, path)
    for line in baselines.changes(before, after) or [f"{label} stays as it was"]:
        click.echo(line)


@baseline.command("list")
def list_() -> None:
    """Name the baselines under .dflash-bench/baselines/."""
    from dflash.bench import baseline as baselines
    from dflash.bench import store

    for path in sorted((store.DIRECTORY / baselines.FOLDER).glob("*.json")):
        stored = baselines.read(path)
        click.echo(f"{path.stem}  {', '.join(stored.strategies)}  of {stored.lengths.name}")


@baseline.command()
@click.argument("name", metavar="NAME|PATH")
def show(name: str) -> None:
    """Print what a baseline holds."""
    from dflash.bench import baseline as baselines

    stored = baselines.read(baselines.location(name)[1])
    click.echo(stored.to_json(indent=2).decode())


@baseline.command()
@click.argument("name", metavar="NAME|PATH")
def rm(name: str) -> None:
    """Remove a baseline."""
    from dflash.bench import baseline as baselines

    _, path = baselines.location(name)
    baselines.read(path)  # nothing but a baseline is removed
    path.unlink()
    click.echo(f"removed {path}")


def _from(source: str) -> Baseline:
    from dflash.bench import baseline as baselines
    from dflash.bench import store
    from dflash.bench.baseline_source import of_document

    if source == "-":
        return of_document(sys.stdin.buffer.read(), "standard input")
    if source.endswith(".json"):
        from dflash.errors import UsageError

        try:
            return of_document(Path(source).read_bytes(), source)
        except OSError as error:
            raise UsageError(f"{source}: cannot read it ({error.strerror})") from None
    return baselines.of_run(store.load(store.find(source))[0])
