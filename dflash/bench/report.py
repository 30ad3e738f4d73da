"""The run as a person reads it: two tables of arms, what the comparisons say, and what was measured where.

Fits in 80 columns, and is plain text when piped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dflash.bench.machine import Machine
from dflash.bench.metrics import number, percent
from dflash.bench.results import Arm, Comparison, Run, Trial
from dflash.bench.statistics import least_pairs
from dflash.bench.verdict import Verdict
from dflash.errors import ExitCode

_LONG_NAME = 16
_ABSENT = "\u2013"
_ASCII = str.maketrans({"\u202f": " ", "\u2212": "-", _ABSENT: "-"})
_STYLES = {Verdict.IMPROVED: "green", Verdict.REGRESSED: "red", Verdict.ERROR: "bold red"}


def show(
    run: Run, trials: Sequence[Trial], stored: Path | None = None, console: Console | None = None
) -> None:
    """Print ``run`` to ``console``, standard output if None; ``stored`` is the file that holds it.

    A stream that cannot encode a character gets a replacement, never an exception: the run is worth more.
    """
    console = console or Console()
    with console.capture() as captured:
        console.print(_speed(run))
        console.print()
        console.print(_causes(run, trials))
        console.print()
        console.print(_labelled(_findings(run)))
        console.print(_labelled(_footer(run, trials)))
        if stored is not None:
            console.print(Text.assemble(("stored   ", "dim"), str(stored)), soft_wrap=True)
    text = captured.get()
    if not console.is_terminal:
        text = "".join(f"{line.rstrip(' ')}\n" for line in text.splitlines())
    if not console.encoding.lower().startswith("utf"):
        text = text.translate(_ASCII).encode(console.encoding, "replace").decode(console.encoding)
    console.file.write(text)
    console.file.flush()


def _speed(run: Run) -> Table:
    against = {c.strategy: c for c in run.comparisons if c.metric == "tok_s"}
    table = _table("strategy", "real\ntok/s", "", "ratio", "", "padded\ntok/s", "loss\ntok/s")
    for arm in run.arms:
        ratio, bounds = _ratio(against.get(arm.strategy), arm.strategy == run.reference)
        interval = arm.intervals.get("tok_s")
        table.add_row(
            _name(arm),
            _number(arm, "tok_s"),
            _interval(number(interval[0]), number(interval[1])) if interval else Text(),
            ratio,
            bounds,
            _number(arm, "padded_tok_s"),
            _number(arm, "loss_tok_s"),
        )
    return table


def _ratio(comparison: Comparison | None, is_reference: bool) -> tuple[Text, Text]:
    if is_reference:
        return Text("1"), Text("reference", "dim")
    if comparison is None or comparison.estimate is None:
        return Text(_ABSENT), Text()
    style = _STYLES.get(comparison.verdict, "") if comparison.verdict else ""
    estimate = Text(number(comparison.estimate, 3), style)
    if comparison.low is None or comparison.high is None:
        return estimate, Text()
    return estimate, _interval(number(comparison.low, 3), number(comparison.high, 3))


def _causes(run: Run, trials: Sequence[Trial]) -> Table:
    table = _table(
        "strategy",
        "padding\neff.",
        "anchor\nslots",
        "label\ncover.",
        "held-out\nloss",
        "gradient\ndivers.",
        "target\nbusy",
        "drafter\nbusy",
        "bottle-\nneck",
    )
    for arm in run.arms:
        named = Counter(
            trial.bottleneck for trial in trials if trial.arm == arm.strategy and trial.bottleneck
        )
        table.add_row(
            _name(arm),
            _percent(arm, "padding_efficiency", 1),
            _percent(arm, "anchor_slot_efficiency", 1),
            _percent(arm, "label_coverage", 1),
            _number(arm, "final_loss", 4),
            _number(arm, "gradient_diversity", 3),
            _percent(arm, "target_utilisation", 0),
            _percent(arm, "drafter_utilisation", 0),
            _clean(named.most_common(1)[0][0] or "") if named else Text(_ABSENT),
        )
    return table


def _findings(run: Run) -> Iterator[tuple[str, Text]]:
    for comparison in run.comparisons:
        if comparison.metric == "tok_s":
            words = f"{comparison.strategy} against {comparison.reference}: {comparison.reason}"
            style = _STYLES.get(comparison.verdict, "bold") if comparison.verdict else "dim"
            yield "speed", Text.assemble((comparison.verdict or "no verdict", style), "  ", _clean(words))
    for arm in run.arms:
        if arm.error is not None:
            yield "failed", Text.assemble(_clean(arm.strategy), ": ", _clean(arm.error), style="red")
    if run.exit_code == ExitCode.INTERRUPTED:
        yield "note", Text("interrupted: only the pairs that were finished count", "bold red")


def _footer(run: Run, trials: Sequence[Trial]) -> Iterator[tuple[str, Text]]:
    s, data, failed = run.settings, run.data, sum(not trial.ok for trial in trials)
    yield (
        "data",
        _clean(
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
    yield "machine", _clean(_describe(run.machine))
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


def _table(first: str, *others: str) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold"
    )
    table.add_column(first, overflow="fold")
    for header in others:
        table.add_column(header, justify="right" if header else "left", no_wrap=True)
    return table


def _labelled(lines: Iterator[tuple[str, Text]]) -> Table:
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(style="dim", width=8, no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in lines:
        grid.add_row(Text(label), text)
    return grid


def _name(arm: Arm) -> Text:
    """The display name, a long one with an option a line."""
    name = _clean(arm.strategy)
    return Text("\n:".join(name.plain.split(":"))) if len(name) > _LONG_NAME else name


def _number(arm: Arm, name: str, digits: int | None = None) -> Text:
    value = arm.metrics.get(name)
    return Text(_ABSENT if value is None else number(value, digits))


def _percent(arm: Arm, name: str, digits: int) -> Text:
    value = arm.metrics.get(name)
    return Text(_ABSENT if value is None else percent(value, digits))


def _interval(low: str, high: str) -> Text:
    return Text(f"[{low}, {high}]", "dim")


def _clean(foreign: str) -> Text:
    """Text that others wrote, on one line and without control characters."""
    return Text(" ".join("".join(c if c.isprintable() else " " for c in foreign).split()))
