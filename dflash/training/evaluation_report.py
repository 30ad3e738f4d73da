"""An evaluation as a person reads it: what it was, what it found, and where drafts end.

Fits in 80 columns, and is plain text when piped.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dflash.training.evaluation import Evaluation

_ABSENT = "-"


def show(evaluation: Evaluation, console: Console | None = None) -> None:
    """Print to ``console``, standard output if None."""
    console = console or Console(highlight=False)
    figures = Table.grid(padding=(0, 2, 0, 0))
    figures.add_column(style="dim", no_wrap=True)
    figures.add_column(overflow="fold")
    for label, figure in _figures(evaluation):
        figures.add_row(label, figure)
    with console.capture() as captured:
        console.print(figures, "", _lengths(evaluation), sep="\n")
    text = captured.get()
    if not console.is_terminal:
        text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    console.file.write(text)


def _figures(found: Evaluation) -> Iterator[tuple[str, Text]]:
    how = "greedy" if not found.temperature else f"sampled at {found.temperature:g}, seed {found.seed}"
    stopped = "; interrupted" if found.interrupted else ""
    yield "drafter", Text(f"{found.checkpoint}, blocks of {found.block_size}")
    yield "data", Text(f"{len(found.responses)} prompts of {found.data}, {how}{stopped}")
    interval = found.tau_interval
    bounds = f", 95 % interval {interval[0]:.2f} .. {interval[1]:.2f}" if interval else ""
    yield "tau", Text(f"{_length(found.tau)} mean over responses{bounds}")
    yield "", Text(f"{_length(found.pooled_tau)} mean over all {sum(found.histogram):,} verifications")
    if found.teacher_forced_length is not None:
        yield "teacher-forced", Text(f"{_length(found.teacher_forced_length)} mean at the same anchors")
        yield "", Text(f"{_length(found.teacher_forced_everywhere)} mean at every position")
    if found.parity is not None:
        equal = f"equal lengths at {found.parity.same:,} of {found.parity.verifications:,} verifications"
        apart = "; training and decoding do not see the same"
        yield "parity", Text(equal) if found.parity.holds else Text(equal + apart, "bold red")
    if found.forwards_saved is not None:
        forwards = f"{found.target_forwards:,} forwards for {found.new_tokens:,} new tokens"
        yield "target", Text(f"{forwards}, {found.forwards_saved:.1%} saved")
    if found.checked:
        rows = found.differing_rows
        identical = f"identical to plain decoding: {len(found.checked) - len(rows)} of {len(found.checked)}"
        different = f"; not the responses to store rows {', '.join(map(str, rows))}"
        yield "text", Text(identical + different, "bold red") if rows else Text(identical)


def _lengths(found: Evaluation) -> Table:
    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 2, 0, 0), pad_edge=False)
    for header in ("length", "verifications", "share", "slot", "accepted"):
        grid.add_column(header, justify="right", no_wrap=True)
    total = max(1, sum(found.histogram))
    for length, count in enumerate(found.histogram, start=1):
        slot = (str(length), f"{found.slots[length - 1]:.3f}") if length < found.block_size else ("", "")
        grid.add_row(str(length), f"{count:,}", f"{count / total:.3f}", *slot)
    return grid


def _length(value: float | None) -> str:
    return _ABSENT if value is None else f"{value:.3f}"
