from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from run_records import FAILURE, a_trial

from dflash.bench.pairs import Slot
from dflash.bench.progress import TrialProgress
from dflash.bench.results import Trial


def followed(level: int = 0, terminal: bool = False, **trial: object) -> str:
    """A pair of trials, the second of which fails, and a look."""
    stream = io.StringIO()
    console = Console(file=stream, width=120, force_terminal=terminal, highlight=False)
    with TrialProgress(10, level, console) as progress:
        progress.started(Slot(3, 0, "random"))
        progress.ended(a_trial(3, "random", 12_345.0, **trial))
        progress.started(Slot(3, 1, "bucketed"))
        progress.ended(Trial(pair=3, slot=1, arm="bucketed", seed=0, status="failed", error=FAILURE))
        progress.looked(10, 15, "bucketed: tok_s 3.0 % lower, 5 % worse is not excluded")
    return stream.getvalue()


def test_in_a_pipe_there_is_a_plain_line_for_each_trial_and_look() -> None:
    first, second, third = followed().splitlines()
    assert first == "trial 1, pair 4 of 10 random 12 345 real tok/s"
    assert second.startswith("trial 2, pair 4 of 10 bucketed failed: PlanError: strategy 'bucketed' repeats")
    assert second.endswith('[red]in[/red] window 3 [31m | <b> & "x"')
    assert third == (
        "after 10 pairs, next look at 15 pairs: bucketed: tok_s 3.0 % lower, 5 % worse is not excluded"
    )


def test_quiet_shows_failures_alone() -> None:
    (line,) = followed(level=-1).splitlines()
    assert "bucketed failed" in line


def test_verbose_adds_what_disturbed_a_trial() -> None:
    lines = followed(level=1, steal_share=0.0712, throttled=["power cap"], notes=["no steady state"])
    first = lines.splitlines()[0]
    assert first.endswith(
        "12 345 real tok/s; no steady state; 7.1 % of the CPU time was stolen; GPUs were held back: power cap"
    )


def test_on_a_terminal_a_bar_tells_the_pair_and_the_next_look() -> None:
    text = followed(terminal=True)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert "pair 4 of 10" in plain and "left at most" in plain
    assert "trial 1, pair 4" not in plain, "a bar needs no line for a trial that worked"
    assert "failed: PlanError" in plain


def test_no_color_on_a_terminal_means_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = followed(terminal=True)
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", text)


def test_repeats_of_pairs_that_were_left_out_extend_the_count() -> None:
    stream = io.StringIO()
    with TrialProgress(1, 0, Console(file=stream, width=120)) as progress:
        for pair in range(2):
            progress.started(Slot(pair, 0, "random"))
            progress.ended(a_trial(pair, "random", 12_345.0))
    assert [line.split("  ")[0][:21] for line in stream.getvalue().splitlines()] == [
        "trial 1, pair 1 of 1 ",
        "trial 2, pair 2 of 2 ",
    ]
