"""The run as a table that GitHub shows, in a job's summary or a comment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dflash.bench import findings
from dflash.bench.results import Comparison, Run, Trial
from dflash.bench.tables import clean

_HEADER = (
    "strategy",
    "real tok/s",
    "ratio",
    "padding efficiency",
    "final loss",
    "gradient diversity",
    "verdict",
)
_SPECIAL = str.maketrans({sign: f"\\{sign}" for sign in "\\`*_[]<>|#~"})


def render(run: Run, trials: Sequence[Trial]) -> str:
    """As GitHub's Markdown: the arms, the gates and other comparisons, and what was measured where."""
    return "\n".join(_lines(run, trials)) + "\n"


def _lines(run: Run, trials: Sequence[Trial]) -> Iterator[str]:
    yield f"### dflash-bench: {run.verdict}"
    yield ""
    yield _row(_HEADER)
    yield _row(["---", *["---:"] * (len(_HEADER) - 2), "---"])
    for row in findings.rows(run):
        cells = [
            row.arm.strategy,
            f"{row.tok_s} {row.tok_s_interval}",
            f"{row.ratio} {row.ratio_interval}",
            row.padding_efficiency,
            row.final_loss,
            row.gradient_diversity,
            row.verdict_text,
        ]
        yield _row(_escaped(cell) for cell in cells)
    yield ""
    yield from _comparisons(run)
    for line in findings.learning_lines(run):
        yield f"- learning: {_escaped(line)}"
    for line in findings.baseline_lines(run):
        yield f"- baseline {_escaped(line)}"
    for arm in run.arms:
        if arm.error is not None:
            yield f"- **ERROR** {_escaped(f'{arm.strategy}: {arm.error}')}"
    for note in findings.notes(run, trials):
        yield f"- {_escaped(note)}"
    yield ""
    facts = (
        findings.data_line(run),
        findings.trials_line(run, trials),
        findings.revision_line(run),
        findings.machine_line(run),
        findings.bounds_line(run),
    )
    yield "<sub>" + "<br>".join(_escaped(fact) for fact in facts if fact) + "</sub>"


def _comparisons(run: Run) -> Iterator[str]:
    for comparison in findings.shown_comparisons(run):
        verdict = comparison.verdict or "no verdict"
        yield f"- **{_escaped(verdict)}** {_escaped(_words(comparison))}"


def _words(comparison: Comparison) -> str:
    advisory = " (advisory)" if comparison.advisory else ""
    return f"{findings.title(comparison)}{advisory}: {findings.reason(comparison)}"


def _row(cells: Sequence[str] | Iterator[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """On one line, and shown as it is: whoever named a strategy decides nothing about the page."""
    return clean(text).plain.translate(_SPECIAL)
