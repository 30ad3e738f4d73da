"""What all reports share: their look, numbers in cells, and text that others wrote.

Fits in 80 columns, and is plain text when piped.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from dflash.bench import findings
from dflash.bench.metrics import ABSENT, number, percent
from dflash.bench.results import Arm, Comparison
from dflash.bench.verdict import Verdict

STYLES: dict[Verdict | None, str] = {
    Verdict.OK: "green",
    Verdict.IMPROVED: "green",
    Verdict.REGRESSED: "red",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.NO_BASELINE: "yellow",
    Verdict.ERROR: "bold red",
    None: "dim",
}

_LONG_NAME = 16
_ASCII = str.maketrans({"\u202f": " ", "\u2212": "-", ABSENT: "-"})


def show_all(parts: Iterable[RenderableType], console: Console | None = None) -> None:
    """Print the parts of a report to ``console``, standard output if None.

    A stream that cannot encode a character gets a replacement, never an exception: the run is worth more.
    """
    console = console or Console()
    with console.capture() as captured:
        for part in parts:
            console.print(part, soft_wrap=isinstance(part, Text))
    text = captured.get()
    if not console.is_terminal:
        text = "".join(f"{line.rstrip(' ')}\n" for line in text.splitlines())
    if not console.encoding.lower().startswith("utf"):
        text = text.translate(_ASCII).encode(console.encoding, "replace").decode(console.encoding)
    console.file.write(text)
    console.file.flush()


def table(first: str, *others: str, gap: int = 2) -> Table:
    """An empty table with these headers and ``gap`` spaces between columns; those without one stand left."""
    padding = (0, gap - 1, 0, 0)
    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=padding, pad_edge=False, header_style="bold")
    grid.add_column(first, overflow="fold")
    for header in others:
        grid.add_column(header, justify="right" if header else "left", no_wrap=True)
    return grid


def labelled(lines: Iterable[tuple[str, Text]]) -> Table:
    """Lines of text, each behind its label."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(style="dim", width=8, no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in lines:
        grid.add_row(Text(label), text)
    return grid


def finding(comparison: Comparison) -> Text:
    """The verdict, who met whom, and why."""
    words = f"{findings.title(comparison)}: {findings.reason(comparison)}"
    verdict = comparison.verdict or "no verdict"
    return Text.assemble((verdict, STYLES[comparison.verdict]), "  ", clean(words))


def name_cell(arm: Arm) -> Text:
    """The display name, a long one with an option a line."""
    name = clean(arm.strategy)
    return Text("\n:".join(name.plain.split(":"))) if len(name) > _LONG_NAME else name


def number_cell(arm: Arm, name: str, digits: int | None = None) -> Text:
    """A figure of an arm."""
    value = arm.metrics.get(name)
    return Text(ABSENT if value is None else number(value, digits))


def percent_cell(arm: Arm, name: str, digits: int) -> Text:
    """A figure of an arm that is a share of one."""
    value = arm.metrics.get(name)
    return Text(ABSENT if value is None else percent(value, digits))


def clean(foreign: str) -> Text:
    """Text that others wrote, on one line and without control characters."""
    return Text(" ".join("".join(c if c.isprintable() else " " for c in foreign).split()))
