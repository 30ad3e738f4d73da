"""The run as a person reads it: two tables of arms, what the comparisons say, and what was measured where.

Fits in 80 columns, and is plain text when piped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from dflash.bench.machine import Machine
from dflash.bench.metrics import number, percent
from dflash.bench.results import Comparison, Run, Trial
from dflash.bench.statistics import least_pairs
from dflash.bench.tables import ABSENT, clean, labelled, name_cell, number_cell, percent_cell, show_all, table
from dflash.bench.verdict import Verdict
from dflash.errors import ExitCode

_STYLES = {Verdict.IMPROVED: "green", Verdict.REGRESSED: "red", Verdict.ERROR: "bold red"}


def show(
    run: Run, trials: Sequence[Trial], stored: Path | None = None, console: Console | None = None
) -> None:
    """Print ``run`` to ``console``, standard output if None; ``stored`` is the file that holds it."""
    place = [] if stored is None else [Text.assemble(("stored   ", "dim"), str(stored))]
    parts: list[RenderableType] = [
        _speed(run),
        "",
        _causes(run, trials),
        "",
        labelled(_findings(run)),
        labelled(_footer(run, trials)),
        *place,
    ]
    show_all(parts, console)


def _speed(run: Run) -> Table:
    against = {c.strategy: c for c in run.comparisons if c.metric == "tok_s"}
    rows = table("strategy", "real\ntok/s", "", "ratio", "", "padded\ntok/s", "loss\ntok/s")
    for arm in run.arms:
        ratio, bounds = _ratio(against.get(arm.strategy), arm.strategy == run.reference)
        interval = arm.intervals.get("tok_s")
        rows.add_row(
            name_cell(arm),
            number_cell(arm, "tok_s"),
            _interval(number(interval[0]), number(interval[1])) if interval else Text(),
            ratio,
            bounds,
            number_cell(arm, "padded_tok_s"),
            number_cell(arm, "loss_tok_s"),
        )
    return rows


def _ratio(comparison: Comparison | None, is_reference: bool) -> tuple[Text, Text]:
    if is_reference:
        return Text("1"), Text("reference", "dim")
    if comparison is None or comparison.estimate is None:
        return Text(ABSENT), Text()
    style = _STYLES.get(comparison.verdict, "") if comparison.verdict else ""
    estimate = Text(number(comparison.estimate, 3), style)
    if comparison.low is None or comparison.high is None:
        return estimate, Text()
    return estimate, _interval(number(comparison.low, 3), number(comparison.high, 3))


def _causes(run: Run, trials: Sequence[Trial]) -> Table:
    rows = table(
        "strategy",
        "padding\neff.",
        "anchor\nslots",
        "label\ncover.",
        "held-out\nloss",
        "grad.\ndivers.",
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
            percent_cell(arm, "padding_efficiency", 1),
            percent_cell(arm, "anchor_slot_efficiency", 1),
            percent_cell(arm, "label_coverage", 1),
            number_cell(arm, "final_loss", 4),
            number_cell(arm, "gradient_diversity", 3),
            percent_cell(arm, "target_utilisation", 0),
            percent_cell(arm, "drafter_utilisation", 0),
            clean(named.most_common(1)[0][0] or "") if named else Text(ABSENT),
        )
    return rows


def _findings(run: Run) -> Iterator[tuple[str, Text]]:
    for comparison in run.comparisons:
        if comparison.metric == "tok_s":
            words = f"{comparison.strategy} against {comparison.reference}: {comparison.reason}"
            style = _STYLES.get(comparison.verdict, "bold") if comparison.verdict else "dim"
            yield "speed", Text.assemble((comparison.verdict or "no verdict", style), "  ", clean(words))
    for arm in run.arms:
        if arm.error is not None:
            yield "failed", Text.assemble(clean(arm.strategy), ": ", clean(arm.error), style="red")
    if run.exit_code == ExitCode.INTERRUPTED:
        yield "note", Text("interrupted: only the pairs that were finished count", "bold red")


def _footer(run: Run, trials: Sequence[Trial]) -> Iterator[tuple[str, Text]]:
    s, data, failed = run.settings, run.data, sum(not trial.ok for trial in trials)
    yield (
        "data",
        clean(
            f"{data.name}: {number(data.samples, 0)} samples, {number(data.tokens, 0)} real tokens, "
            f"{data.fingerprint}"
        ),
    )
    yield (
        "trials",
        Text(
            f"{len(trials)}, {failed} failed; each {s.warmup_windows} warm-up and {s.windows} measured "
            f"windows of {s.accumulation * s.drafters} micro-batches, token budget "
            f"{number(s.token_budget, 0)}, seed {s.seed}"
        ),
    )
    yield "machine", clean(_describe(run.machine))
    bounded = [arm for arm in run.arms if "tok_s" in arm.intervals]
    if bounded:
        yield (
            "bounds",
            Text(
                f"[low, high]: each end is a one-sided {percent(s.level)} bound, of the median trial by the "
                "exact sign test, of the ratio by the exact signed-rank test on pairs of adjacent trials"
            ),
        )
    if len(bounded) < sum(arm.metrics.get("tok_s") is not None for arm in run.arms):
        least = least_pairs(s.level)
        yield (
            "note",
            Text(f"fewer than {least} trials or pairs have no {percent(s.level)} interval and no verdict"),
        )


def _describe(machine: Machine) -> str:
    memory = [f"{number(machine.memory_bytes / 2**30, 0)} GiB"] if machine.memory_bytes else []
    quota = [f"quota {number(machine.cpu_quota)}"] if machine.cpu_quota else []
    versions = [f"{name} {version}" for name, version in machine.versions.items() if version]
    threads = [f"{name}={value}" for name, value in machine.threads.items() if value]
    cores = f"{machine.cores} core{'s' if machine.cores != 1 else ''}"
    facts = [machine.cpu, cores, *quota, *memory, *machine.gpus, machine.platform, f"Python {machine.python}"]
    return ", ".join([*facts, *versions, *threads])


def _interval(low: str, high: str) -> Text:
    return Text(f"[{low}, {high}]", "dim")
