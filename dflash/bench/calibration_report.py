"""Error rates as a person reads them, and the progress of the runs behind them."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dflash.bench.calibration import Calibration, Repeat
from dflash.bench.metrics import ABSENT, number, percent
from dflash.bench.pairs import Slot
from dflash.bench.results import Trial
from dflash.bench.status_line import StatusLine
from dflash.bench.tables import clean, labelled, show_all, table
from dflash.bench.verdict import Verdict
from dflash.errors import ExitCode


def show(calibration: Calibration, console: Console | None = None) -> None:
    """Print ``calibration`` to ``console``, standard output if None; the summary comes last."""
    notes = [("failed", clean(failure)) for failure in calibration.failures]
    if calibration.exit_code == ExitCode.INTERRUPTED:
        notes.append(("note", Text("interrupted: only the runs that were finished count", "bold red")))
    show_all([_rates(calibration), "", labelled(notes), Text(calibration.summary)], console)


def _rates(calibration: Calibration) -> Table:
    rows = table("", "runs", str(Verdict.REGRESSED), "", "OK or\nIMPROVED", "INCON-\nCLUSIVE", "pairs\na run")
    for rate in calibration.rates:
        share = rate.regressed / rate.repeats if rate.repeats else None
        fine = rate.verdicts.get(Verdict.OK, 0) + rate.verdicts.get(Verdict.IMPROVED, 0)
        rows.add_row(
            rate.source,
            number(rate.repeats, 0),
            ABSENT if share is None else percent(share, 2),
            Text(f"[{number(100 * rate.at_least, 2)}, {number(100 * rate.at_most, 2)}]", "dim"),
            number(fine, 0),
            number(rate.verdicts.get(Verdict.INCONCLUSIVE, 0), 0),
            ABSENT if rate.pairs is None else number(rate.pairs, 1),
        )
    return rows


class CalibrationProgress(StatusLine):
    """The run and the pair at hand, on a terminal; a line for each look and finished run. On stderr."""

    def __init__(self, repeats: int) -> None:
        super().__init__("preparing")
        self._repeats, self._done = repeats, 0

    def started(self, slot: Slot) -> None:
        """A trial begins."""
        self._status.update(f"run {self._done + 1}/{self._repeats}  pair {slot.pair + 1}  {slot.arm}")

    def ended(self, trial: Trial) -> None:
        """A trial has ended; a failed one is named."""
        if trial.error is not None:
            self._console.print(clean(f"{trial.where}: {trial.error}"), soft_wrap=True)

    def looked(self, pairs: int, next_look: int | None, reason: str) -> None:
        """The run is planned, or goes on."""
        line = f"run {self._done + 1}/{self._repeats}  {pairs} pairs  "
        self._console.print(Text(line, "dim") + clean(reason), soft_wrap=True)

    def finished(self, repeat: Repeat) -> None:
        """A run has its verdict."""
        self._done += 1
        verdict = f"run {self._done}/{self._repeats}  {repeat.verdict or 'no verdict'}  "
        self._console.print(Text(verdict) + clean(repeat.reason), soft_wrap=True)
