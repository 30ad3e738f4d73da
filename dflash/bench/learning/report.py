"""A learning run as a person reads it: a line for each strategy, and the figures behind it, in 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from dflash.bench.learning.results import Bounds, LearningArm, LearningReport
from dflash.bench.metrics import ABSENT, number, percent
from dflash.bench.tables import clean, labelled, show_all, table
from dflash.bench.verdict import Verdict

_STYLES = {Verdict.OK: "green", Verdict.REGRESSED: "red", Verdict.ERROR: "bold red"}


def show(report: LearningReport, console: Console | None = None) -> None:
    """Print ``report`` to ``console``, standard output if None."""
    show_all(parts(report), console)


def parts(report: LearningReport) -> list[RenderableType]:
    """What is printed, from top to bottom."""
    return [
        labelled(_lines(report)),
        "",
        _pareto(report),
        "",
        _gradients(report),
        "",
        _micro_batches(report),
        "",
        _losses(report),
        "",
        _lengths(report),
        "",
        labelled(_footer(report)),
    ]


def _lines(report: LearningReport) -> Iterator[tuple[str, Text]]:
    for arm in report.arms:
        style = _STYLES.get(arm.verdict, "") if arm.verdict else ""
        yield "learning", Text.assemble((str(arm.verdict or ABSENT), style), "  ", clean(arm.line))


def _pareto(report: LearningReport) -> Table:
    rows = table("strategy", "speed", "design\neffect", "", "windows", "dominated by")
    known = [arm for arm in report.arms if arm.error is None]
    for arm in sorted(known, key=lambda arm: -(arm.speed or 0)):
        style = "dim" if arm.dominated_by else ""
        rows.add_row(
            clean(arm.strategy),
            _figure(arm.speed, 2),
            _figure(arm.metrics.get("design_effect"), 2),
            _interval(arm, "design_effect"),
            number(arm.frozen_windows, 0),
            clean(arm.dominated_by or ABSENT),
            style=style,
        )
    return rows


def _gradients(report: LearningReport) -> Table:
    rows = table(
        "strategy", "design effect\nat the start", "after\na quarter", "at the\nend", "lag-1\ncosine"
    )
    for arm in report.arms:
        points = [*arm.points, None, None, None][:3]
        rows.add_row(
            clean(arm.strategy), *(_stacked(point) for point in points), _figure(arm.lag_1_cosine, 2)
        )
    return rows


def _micro_batches(report: LearningReport) -> Table:
    rows = table(
        "strategy",
        "loss d.e.\nwindow",
        "loss d.e.\nmicro-batch",
        "diver-\nsity",
        "if at\nrandom",
        "noise\nscale",
    )
    for arm in report.arms:
        effect, interval = arm.metrics.get("loss_design_effect"), arm.intervals.get("loss_design_effect")
        window = Bounds(effect, *interval) if effect is not None and interval else None
        rows.add_row(
            clean(arm.strategy),
            _stacked(window),
            _stacked(arm.micro_batch_loss_design_effect),
            _figure(arm.metrics.get("gradient_diversity"), 2),
            _figure(arm.random_diversity, 2),
            _figure(arm.noise_scale, 0),
        )
    return rows


def _losses(report: LearningReport) -> Table:
    rows = table(
        "strategy", "steps", "held-out\nloss", "\nratio", "time to\nloss", "\nspikes", "forget-\nting"
    )
    for arm in report.arms:
        rows.add_row(
            clean(arm.strategy),
            number(arm.windows, 0),
            _figure(arm.metrics.get("final_loss"), 3),
            _stacked(arm.against_reference.get("final_loss"), 4),
            _figure(arm.metrics.get("time_to_loss"), 0),
            _figure(arm.metrics.get("loss_spikes"), 0),
            _figure(arm.metrics.get("forgetting"), 4),
        )
    return rows


def _lengths(report: LearningReport) -> Table:
    rows = table("strategy", "loss drift\nshort", "\nmiddle", "\nlong", "weight\nshort", "weight\nlong")
    for arm in report.arms:
        drifts = [*arm.drift_by_bin, None, None, None][:3]
        rows.add_row(
            clean(arm.strategy),
            *(_figure(drift, 3) for drift in drifts),
            _figure(arm.short_weight, 2),
            _figure(arm.long_weight, 2),
        )
    return rows


def _footer(report: LearningReport) -> Iterator[tuple[str, Text]]:
    seeds = report.seeds
    yield (
        "trials",
        Text(
            f"seeds {seeds[0]} to {seeds[-1]}; each trains {number(report.tokens, 0)} real tokens once, and "
            f"measures gradients of {number(report.pool_tokens, 0)} others; "
            f"{number(report.seconds, 0)} s on {report.cores} cores"
        ),
    )
    yield (
        "bounds",
        Text(
            f"[low, high]: each end is a one-sided {percent(report.level)} bound, over {_basis(report.arms)}"
        ),
    )
    yield (
        "reading",
        Text(
            "design effect: variance of windows' gradients x tokens, over that of the same samples dealt at "
            "random; 1 is random, 2 needs windows twice as large. The loss design effect (d.e.) is that of "
            "one number: it tells sorted from packed, and nothing finer. speed: "
            + ("measured" if report.speed_measured else "predicted by the plans")
            + ", over the reference. weights: what a label of a short or long sample counts; 1 is fair."
        ),
    )
    for arm in report.arms:
        if arm.noise_scale_withheld:
            yield "withheld", clean(f"noise scale of {arm.strategy}: {arm.noise_scale_withheld}")
    for note in report.notes:
        yield "note", clean(note)


def _basis(arms: Sequence[LearningArm]) -> str:
    bases = sorted({arm.basis for arm in arms if arm.error is None})
    return " or ".join(bases)


def _figure(value: float | None, digits: int) -> Text:
    return Text(ABSENT if value is None else number(value, digits))


def _interval(arm: LearningArm, name: str) -> Text:
    bounds = arm.intervals.get(name)
    return Text(f"[{number(bounds[0], 2)}, {number(bounds[1], 2)}]" if bounds else "", "dim")


def _stacked(bounds: Bounds | None, digits: int = 2) -> Text:
    """The figure above its interval."""
    if bounds is None:
        return Text(ABSENT)
    value = number(bounds.value, digits)
    if bounds.low is None or bounds.high is None:
        return Text(value)
    interval = f"[{number(bounds.low, digits)},{number(bounds.high, digits)}]"
    return Text.assemble(value, "\n", (interval, "dim"))
