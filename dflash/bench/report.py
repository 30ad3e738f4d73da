"""The run as a person reads it: two tables of arms, what the comparisons say, what was measured where, and
what learning trials said.

A function of the run's record and its trials, so a stored run is shown as it was when it ended. Fits in 80
columns, and is plain text when piped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from dflash.bench import findings
from dflash.bench.learning import report as learning
from dflash.bench.metrics import ABSENT
from dflash.bench.results import Comparison, Run, Trial
from dflash.bench.tables import (
    STYLES,
    clean,
    finding,
    labelled,
    name_cell,
    number_cell,
    percent_cell,
    show_all,
    table,
)


def show(
    run: Run,
    trials: Sequence[Trial],
    stored: Path | None = None,
    console: Console | None = None,
    verbose: bool = False,
) -> None:
    """Print ``run`` to ``console``, standard output if None; ``stored`` is the file that holds it.

    ``verbose`` shows every comparison, and not only those of the gates and the speed.
    """
    place = [] if stored is None else [Text.assemble(("stored   ", "dim"), str(stored))]
    parts: list[RenderableType] = [
        _speed(run),
        "",
        _causes(run, trials),
        "",
        labelled(_sayings(run, trials, verbose)),
        labelled(_footer(run, trials)),
        *([] if run.learning is None else ["", *learning.parts(run.learning)]),
        *place,
    ]
    show_all(parts, console)


def _speed(run: Run) -> Table:
    rows = table(
        "strategy",
        "real\ntok/s",
        "\nratio",
        "padd.\neff.",
        "final\nloss",
        "grad.\ndiv.",
        "\nverdict",
        gap=1,
    )
    for row in findings.rows(run):
        style = STYLES[row.verdict]
        rows.add_row(
            name_cell(row.arm),
            _stacked(Text(row.tok_s), row.tok_s_interval),
            _stacked(Text(row.ratio, style), row.ratio_interval),
            row.padding_efficiency,
            row.final_loss,
            row.gradient_diversity,
            Text(row.verdict_text, style),
        )
    return rows


def _stacked(figure: Text, interval: str) -> Text:
    """The figure above its interval, which beside it would not leave the table 80 columns wide."""
    return Text.assemble(figure, "\n", (interval, "dim")) if interval else figure


def _causes(run: Run, trials: Sequence[Trial]) -> Table:
    rows = table(
        "strategy",
        "padded\ntok/s",
        "loss\ntok/s",
        "anchor\nslots",
        "label\ncover.",
        "target\nbusy",
        "drafter\nbusy",
        "bottle-\nneck",
    )
    for arm in run.arms:
        named = Counter(
            trial.bottleneck for trial in trials if trial.arm == arm.strategy and trial.bottleneck
        )
        rows.add_row(
            name_cell(arm),
            number_cell(arm, "padded_tok_s"),
            number_cell(arm, "loss_tok_s"),
            percent_cell(arm, "anchor_slot_efficiency", 1),
            percent_cell(arm, "label_coverage", 1),
            percent_cell(arm, "target_utilisation", 0),
            percent_cell(arm, "drafter_utilisation", 0),
            clean(named.most_common(1)[0][0] or "") if named else Text(ABSENT),
        )
    return rows


def _sayings(run: Run, trials: Sequence[Trial], verbose: bool) -> Iterator[tuple[str, Text]]:
    for comparison in run.comparisons if verbose else findings.shown_comparisons(run):
        yield _label(comparison), finding(comparison)
    for line in findings.baseline_lines(run):
        yield "baseline", clean(line)
    for arm in run.arms:
        if arm.error is not None:
            yield "failed", Text.assemble(clean(arm.strategy), ": ", clean(arm.error), style="red")
    for note in findings.notes(run, trials):
        yield "note", clean(note)


def _label(comparison: Comparison) -> str:
    if comparison.gate is not None:
        return "gate"
    if comparison.advisory:
        return "advisory"
    return "speed" if comparison.metric == findings.SPEED else ""


def _footer(run: Run, trials: Sequence[Trial]) -> Iterator[tuple[str, Text]]:
    lines = {
        "data": findings.data_line(run),
        "trials": findings.trials_line(run, trials),
        "revision": findings.revision_line(run),
        "machine": findings.machine_line(run),
        "bounds": findings.bounds_line(run),
    }
    for label, line in lines.items():
        if line is not None:
            yield label, clean(line)
