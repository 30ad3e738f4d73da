"""A calibration as a person reads it: what a stage costs, and how well that foretells a micro-batch."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from dflash.bench.metrics import number, percent
from dflash.bench.tables import clean, labelled, show_all, table
from dflash.simulation.calibrate import Calibration

_DISTURBED = 0.05
_UNITS = {
    "target_padded": ("us/token", "ns/token²"),
    "target_packed": ("us/token", "ns/token²"),
    "drafter": ("us/anchor", "us/label", "us/token", "ns/pair"),
    "load": ("us/token",),
}


def show(found: Calibration, path: Path, console: Console | None = None) -> None:
    """Print what was measured to ``console``, standard output if None."""
    measured = found.profile.measured
    assert measured is not None  # a calibration measures
    rows = table("stage", "fixed\nms", "error\nrms", "error\nlargest", "")
    for name, units in _UNITS.items():
        stage = getattr(measured, name)
        each = [
            f"{number(value * (1e9 if unit.startswith('ns') else 1e6))} {unit}"
            for value, unit in zip(stage.coefficients[1:], units, strict=True)
        ]
        rows.add_row(
            Text(name.replace("_", ", ")),
            number(stage.coefficients[0] * 1e3, 2),
            percent(stage.leave_one_out, 1),
            percent(stage.largest_error, 1),
            Text("\n".join(each)),
        )
    lines = [
        ("window", Text(f"its end takes {number(measured.optimizer_seconds.value * 1e3, 2)} ms")),
        (
            "at once",
            Text(
                f"a target takes {number(measured.target_slowdown.value, 3)} times as long beside a drafter, "
                f"a drafter {number(measured.drafter_slowdown.value, 3)} times beside a target"
            ),
        ),
        (
            "took",
            Text(
                f"{number(found.seconds)} s for {found.micro_batches} micro-batches; errors are those of "
                "micro-batches that were left out of the fit"
            ),
        ),
        ("profile", clean(str(path))),
    ]
    if found.disturbed > _DISTURBED:
        lines.append(
            (
                "warning",
                Text(
                    f"other processes took {percent(found.disturbed, 0)} of a core: rates will be too low; "
                    "calibrate again when nothing else runs",
                    style="yellow",
                ),
            )
        )
    show_all([rows, "", labelled(lines)], console)
