"""Our strategies beside the samplers that people use today, in one run, on the same lengths.

    tox -e peers
    tox -e peers -- --lengths lognormal:n=100000 --json peers.json

One yardstick for all: padding efficiency is real / padded tokens; fill is real tokens / (micro-batches x
token budget); over is the share of micro-batches above the budget, and largest the largest of them in
budgets; lost counts samples that are in no micro-batch; the variance ratio is that of windows of A x M
micro-batches as they come (1: random). Seconds are one thread's; x is their ratio to our strategy of the
same layout, in the same run.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import click
import numpy as np
from rich.table import Table
from rich.text import Text
from samplers import PEERS, Built, ours

from dflash.batching import mixing
from dflash.batching.lengths import parse_lengths
from dflash.batching.plan import IntArray, PlanRequest
from dflash.bench.metrics import number, percent
from dflash.bench.tables import show_all, table
from dflash.plugin_manager import PluginManager

REFERENCE = {"padded": "bucketed:buckets=6", "packed": "packed"}
OURS = "random,windowed,bucketed:buckets=6,bucketed:buckets=16,step_window,packed,first_fit"


@dataclass(frozen=True)
class Row:
    """What one sampler made of the lengths."""

    name: str
    version: str
    layout: str
    padding_efficiency: float
    fill: float
    over_budget: float
    largest: float
    lost: int
    repeated: int
    variance_ratio: float
    seconds: float


def measure(name: str, release: str, built: Built, lengths: IntArray, request: PlanRequest) -> Row:
    """Hold micro-batches against the lengths; samples are told apart by their length only."""
    rows = np.array([len(batch) for batch in built.batches])
    real = np.array([batch.sum() for batch in built.batches])
    longest = np.array([batch.max() for batch in built.batches])
    padded = real if built.layout == "packed" else rows * longest
    planned = np.concatenate(built.batches)
    surplus = np.bincount(planned, minlength=lengths.max() + 1) - np.bincount(lengths)
    windows = np.arange(0, len(rows) - request.window_size + 1, request.window_size)
    whole = windows[-1] + request.window_size
    return Row(
        name=name,
        version=release,
        layout=built.layout,
        padding_efficiency=real.sum() / padded.sum(),
        fill=real.sum() / (len(rows) * request.token_budget),
        over_budget=float((padded > request.token_budget).mean()),
        largest=padded.max() / request.token_budget,
        lost=int(-surplus[surplus < 0].sum()),
        repeated=int(surplus[surplus > 0].sum()),
        variance_ratio=mixing.variance_ratio(
            planned[: rows[:whole].sum()],
            np.add.reduceat(rows[:whole], windows),
            np.add.reduceat(real[:whole], windows),
        ),
        seconds=built.seconds,
    )


@click.command()
@click.option("--lengths", "text", default="lognormal", help="Lengths to draw.")
@click.option("--only", help="Names of peers, comma-separated.  [default: all]")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the rows as JSON.")
def main(text: str, only: str | None, json_file: Path | None) -> None:
    lengths = parse_lengths(text)
    request = PlanRequest(49_152, seed=0, epoch=0, drafters=8, accumulation=4, tail="spread")
    arms = PluginManager().arms(OURS)
    found = [
        measure(arm.name, arm.record.version, ours(arm, lengths, request), lengths, request) for arm in arms
    ]
    for name in only.split(",") if only else PEERS:
        click.echo(f"{name} ...", err=True)
        try:
            built = PEERS[name](lengths, request)
        except ImportError as error:
            click.echo(f"{name} is left out: {error}", err=True)
            continue
        found.append(measure(name, version(name), built, lengths, request))
    releases = {f"{row.name} {row.version}" for row in found if row.name in PEERS}
    show_all([_table(found), Text(f"the peers are {', '.join(sorted(releases))}")])
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(row) for row in found], indent=2) + "\n")


def _table(found: list[Row]) -> Table:
    rows = table(
        "sampler",
        "padding\neff.",
        "\nfill",
        "\nover",
        "\nlargest",
        "\nlost",
        "variance\nratio",
        "\ns",
        "\nx",
    )
    seconds = {row.name: row.seconds for row in found}
    for row in found:
        rows.add_row(
            row.name,
            percent(row.padding_efficiency, 1),
            percent(row.fill, 1),
            percent(row.over_budget, 1),
            number(row.largest, 2),
            number(row.lost, 0),
            number(row.variance_ratio),
            number(row.seconds, 2),
            number(row.seconds / seconds[REFERENCE[row.layout]], 1),
        )
    return rows


if __name__ == "__main__":
    main()
