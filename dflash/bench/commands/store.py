"""`dflash-bench show`, `export` and `compare`: what was stored, without measuring anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dflash.bench.commands.options import GateOptions, gate_options
from dflash.bench.output import write

if TYPE_CHECKING:
    from dflash.bench.results import Run, Trial


@click.command()
@click.argument("run", default="last")
@click.option("--list", "listed", is_flag=True, help="A line for each stored run, the newest last.")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Write the run as JSON ('-': stdout)."
)
@click.option("-v", "--verbose", is_flag=True, help="Show every comparison, not only the speed.")
def show(run: str, listed: bool, json_file: Path | None, verbose: bool) -> int:
    """Show a stored run again. RUN is `last`, a path, or the start of one run's name.

    \b
    dflash-bench show
    dflash-bench show 01JD --json -
    dflash-bench show --list
    """
    from dflash.bench import report, store

    if listed:
        for path in store.paths():
            found, trials = store.load(path)
            names = ",".join(arm.strategy for arm in found.arms)
            click.echo(f"{found.run_id}  {found.verdict}  exit {int(found.exit_code)}  {names}  "
                       f"{len(trials)} trials")  # fmt: skip
        return 0
    path = store.find(run)
    found, trials = store.load(path)
    if json_file != Path("-"):
        report.show(found, trials, path, verbose=verbose)
    if json_file is not None:
        write(json_file, found.to_json(indent=2) + b"\n")
    return 0


@click.command()
@click.argument("form", type=click.Choice(["csv", "json"]))
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option(
    "--table",
    type=click.Choice(["trials", "windows", "comparisons", "runs"]),
    default="trials",
    show_default=True,
    help="Which rows.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("-"),
    help="File to write.  [default: stdout]",
)
def export(form: str, runs: tuple[str, ...], table: str, output: Path) -> None:
    """Write the rows of stored runs, the last one's if none is named, as CSV or as a JSON array.

    Values are in SI base units. What was not measured is an empty cell, or null.

    \b
    dflash-bench export csv > trials.csv
    dflash-bench export json 01JD 01JE --table comparisons -o comparisons.json
    """
    from dflash.bench import store
    from dflash.bench.export import to_csv, to_json

    rows = [row for name in runs or ("last",) for row in store.rows(store.find(name), table)]
    write(output, to_csv(rows, table) if form == "csv" else to_json(rows))


@click.command()
@click.argument("before", metavar="RUN")
@click.argument("after", metavar="[RUN]", required=False)
@gate_options
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Write the run as JSON ('-': stdout)."
)
@click.option("-v", "--verbose", is_flag=True, help="Show every comparison, not only the speed.")
def compare(before: str, after: str | None, gates: GateOptions, json_file: Path | None, verbose: bool) -> int:
    """Judge stored runs by gates, as a run itself does, without measuring.

    One RUN: its own pairs are judged again. Two: the second is held against the first in what is exact;
    clocks of two runs were not measured side by side, and are advice.

    \b
    dflash-bench compare last --fail-on tok_s:5%
    dflash-bench compare 01JD last --fail-on padding_efficiency:0.1%
    """
    from dflash.bench import offline, report, store

    first = store.load(store.find(before))
    second: tuple[Run, list[Trial]] | None = None if after is None else store.load(store.find(after))
    rules = gates.rules()
    judged = offline.again(*first, rules) if second is None else offline.against(first[0], *second, rules)
    trials = (second or first)[1]
    if json_file != Path("-"):
        report.show(judged, trials, verbose=verbose)
    if json_file is not None:
        write(json_file, judged.to_json(indent=2) + b"\n")
    return int(judged.exit_code)
