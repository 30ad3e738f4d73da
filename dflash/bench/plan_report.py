"""Plans as a person reads them, in two tables, and as a spreadsheet does."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dflash.bench.metrics import ABSENT, PLAN_METRICS, number
from dflash.bench.plan_run import PlanReport
from dflash.bench.tables import (
    clean,
    finding,
    labelled,
    name_cell,
    number_cell,
    percent_cell,
    show_all,
    table,
)
from dflash.bench.verdict import Verdict


def show(report: PlanReport, console: Console | None = None) -> None:
    """Print ``report`` to ``console``, standard output if None."""
    show_all([_cost(report), "", _mixture(report), "", labelled(_footer(report))], console)


def to_csv(report: PlanReport) -> str:
    """A row for each arm: its name, origin and digest, every metric in SI units, and its error."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["strategy", "distribution", "version", "plan_digest", *PLAN_METRICS, "error"])
    for arm in report.arms:
        figures = [arm.metrics[name] for name in PLAN_METRICS]
        origin = [arm.plugin.distribution, arm.plugin.version, arm.plan.get("digest")]
        rows.writerow([arm.strategy, *origin, *figures, arm.error])
    return text.getvalue()


def _cost(report: PlanReport) -> Table:
    rows = table(
        "strategy",
        "padding\neff.",
        "\nfill",
        "micro-\nbatches",
        "pre-\ndicted",
        "\nwindows",
        "\nshapes",
        "\nsum len²",
        "plan\ns",
    )
    for arm in report.arms:
        rows.add_row(
            name_cell(arm),
            percent_cell(arm, "padding_efficiency", 2),
            percent_cell(arm, "fill", 1),
            number_cell(arm, "micro_batches", 0),
            number_cell(arm, "predicted_micro_batches", 0),
            number_cell(arm, "windows", 0),
            number_cell(arm, "distinct_shapes", 0),
            _scientific(arm.metrics["squared_length_sum"]),
            number_cell(arm, "plan_seconds", 2),
        )
    return rows


def _scientific(value: float | None) -> Text:
    return Text(ABSENT if value is None else f"{value:.2e}".replace("e+", "e"))


def _mixture(report: PlanReport) -> Table:
    rows = table(
        "strategy",
        "variance\nratio",
        "lag-1\ncorr.",
        "mates\nagain",
        "m.-batch\nbits",
        "window\nbits",
        "token\nvar.",
        "strag-\nglers",
        "largest\ntokens",
    )
    for arm in report.arms:
        rows.add_row(
            name_cell(arm),
            number_cell(arm, "variance_ratio"),
            number_cell(arm, "window_length_autocorrelation", 3),
            number_cell(arm, "mate_overlap", 4),
            number_cell(arm, "micro_batch_length_entropy", 2),
            number_cell(arm, "window_length_entropy", 2),
            percent_cell(arm, "window_token_variation", 1),
            number_cell(arm, "straggler_ratio", 3),
            number_cell(arm, "largest_micro_batch", 0),
        )
    return rows


def _footer(report: PlanReport) -> Iterator[tuple[str, Text]]:
    s, data = report.settings, report.data
    for arm in report.arms:
        if arm.error is not None:
            yield "failed", Text.assemble(clean(arm.strategy), ": ", clean(arm.error), style="red")
    gates = [one for one in report.comparisons if one.gate is not None]
    yield from (("gate", finding(one)) for one in gates if one.verdict is not Verdict.OK)
    if gates:
        held = sum(one.verdict in (Verdict.OK, Verdict.IMPROVED) for one in gates)
        yield "gates", Text(f"{held} of {len(gates)} hold")
    if report.baseline is not None:
        for difference in report.baseline.differences:
            yield "baseline", Text.assemble(clean(report.baseline.path), ": ", clean(difference))
    certified = [arm for arm in report.arms if arm.error is None]
    yield "proof", Text(f"the certificates of {len(certified)} of {len(report.arms)} plans pass")
    for arm in certified:
        for reason, left_out in arm.plan["ledger"].items():
            if left_out["samples"]:
                counts = f"{number(left_out['samples'], 0)} samples, {number(left_out['tokens'], 0)} tokens"
                yield "ledger", Text.assemble(clean(arm.strategy), f": {reason} {counts}")
    yield (
        "data",
        clean(
            f"{data.name}: {number(data.samples, 0)} samples, {number(data.tokens, 0)} real tokens, "
            f"{data.fingerprint}"
        ),
    )
    yield (
        "request",
        Text(
            f"token budget {number(s.token_budget, 0)}, windows of {s.accumulation} x {s.drafters} "
            f"micro-batches, seed {s.seed}, epoch {s.epoch}, tail={s.tail}, overlong={s.overlong}"
        ),
    )
    yield (
        "reading",
        Text(
            "variance ratio of window mean length: 1 is random. mates again: share of batch mates that are "
            "mates in the next epoch too, 1 is frozen. bits: entropy of length octiles, corrected for few "
            "samples as if they were drawn at random; 3 is an ideal mixture, and more is evener than chance. "
            "token var.: of windows' real tokens. stragglers: costliest / mean drafter of a window."
        ),
    )
