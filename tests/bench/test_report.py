from __future__ import annotations

import io
import re
import unicodedata
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console
from run_records import a_run

from dflash.bench import store
from dflash.bench.report import show
from dflash.bench.results import BaselineUse, InvalidPair, Revision, Run, Trial
from dflash.bench.verdict import Verdict


def shown(
    run: Run,
    trials: list[Trial],
    width: int = 100,
    stored: Path | None = None,
    verbose: bool = False,
    **options: Any,
) -> str:
    stream = io.StringIO()
    show(run, trials, stored, Console(file=stream, width=width, **options), verbose=verbose)
    return stream.getvalue()


def row(text: str, strategy: str, table: int) -> list[str]:
    """The cells of the strategy's row in the first or second table, without the line of intervals."""
    lines = [line for line in text.splitlines() if line.startswith(f"{strategy} ")]
    return cells(lines[table])


def cells(line: str) -> list[str]:
    """Parts between spaces, of which a percentage and an interval hold one themselves."""
    return re.findall(r"\[.*?\]|\S+ %|\S+", line.replace("\u202f", ""))


def flat(text: str) -> str:
    return " ".join(text.split())


def test_a_row_holds_speed_ratio_causes_and_verdict_with_the_intervals_below() -> None:
    text = shown(*a_run({"random": 10_000.0, "bucketed": 20_000.0}))
    first = text.split("\n\n")[0]
    assert [cells(line) for line in first.splitlines()[3:]] == [
        ["random", "10250", "1", "50.0 %", "5.1235", "0.000", "reference"],
        ["[10000, 10500]"],
        ["bucketed", "20500", "2.000", "50.0 %", "5.1235", "0.000", "IMPROVED"],
        ["[20000, 21000]", "[2.000, 2.000]"],
    ]
    assert "10\u202f250" in text


def test_a_second_table_holds_the_causes_and_null_is_not_zero() -> None:
    text = shown(*a_run({"random": 10_000.0, "bucketed": 20_000.0}))
    assert row(text, "bucketed", 1) == [
        "bucketed",
        "41000",
        "6833",
        "87.5 %",
        "63.1 %",
        "91 %",
        "\u2013",
        "target",
    ]


def test_what_was_measured_where_is_said() -> None:
    text = shown(
        *a_run({"random": 10_000.0, "bucketed": 20_000.0}, class_key="0123456789abcdef"),
        stored=Path("x/01ARZ.parquet"),
    )
    said = flat(text)
    assert "data sample: 11 873 samples, 1 234 567 real tokens, f00dcafe" in said
    assert "12, 0 failed; each 2 warm-up and 6 measured windows of 2 micro-batches" in said
    assert "token budget 4 096, seed 7" in said
    assert (
        "Some CPU @ 2.00GHz, 2 cores, quota 1.50, 8 GiB, Some GPU, Linux x86_64, Python 3.11.9, "
        "torch 2.13.0, OMP_NUM_THREADS=1, class 0123456789abcdef"
    ) in said
    assert "each end is a one-sided 98 % bound" in said
    assert text.endswith("stored   x/01ARZ.parquet\n")
    assert "IMPROVED bucketed against random: tok_s 100.0 % higher [+100.0, +100.0], 6 pairs: better" in said


def test_a_gate_names_metric_size_interval_pairs_and_what_could_have_been_seen() -> None:
    run, trials = a_run(
        {"random": 20_000.0, "bucketed": 18_000.0}, pairs=10, fail_on=["tok_s:5%", "padding_efficiency:0.1%"]
    )
    gates = [line for line in shown(run, trials, width=200).splitlines() if line.startswith("gate")]
    assert len(gates) == 2
    assert (
        "REGRESSED  bucketed against random, tok_s:5%: tok_s 10.0 % lower [\u221210.0, \u221210.0]"
        in gates[0]
    )
    assert "10 pairs: worse; minimum detectable effect" in gates[0]
    assert "OK  bucketed against random, padding_efficiency:0.1%" in gates[1]
    first = shown(run, trials).split("\n\n")[0]
    assert first.splitlines()[-2].endswith("REGRESSED"), "of two gates the row shows the one that decides"


def test_other_comparisons_are_shown_when_asked_for() -> None:
    run, trials = a_run({"random": 20_000.0, "bucketed": 18_000.0}, fail_on=["tok_s:5%"])
    assert "loss_tok_s" not in shown(run, trials, width=200)
    assert "loss_tok_s 10.0 % lower" in shown(run, trials, width=200, verbose=True)


def test_an_exact_gate_between_strategies_is_in_the_row_too() -> None:
    run, trials = a_run(
        {"random": 20_000.0, "bucketed": 20_000.0},
        fail_on=["padding_efficiency:1%"],
        metrics={"bucketed": {"padding_efficiency": 0.4}},
    )
    text = shown(run, trials, width=200)
    assert row(text, "bucketed", 0)[-1] == "REGRESSED"
    assert "gate     REGRESSED  bucketed against random, padding_efficiency:1%" in text


def test_what_weakens_the_figures_is_said() -> None:
    run, trials = a_run(
        {"random": 10_000.0, "bucketed": 20_000.0},
        metrics={
            "random": {"throttled": ["power cap"]},
            "bucketed": {"notes": ["no steady state: windows got 9 % slower on the way"]},
        },
        invalid_pairs=[InvalidPair(pair=3, reason="bucketed: 7.1 % of the CPU time was stolen")],
    )
    said = flat(shown(run, trials))
    assert "bucketed: no steady state: windows got 9 % slower on the way, in 6 of 6 trials" in said
    assert "random: GPUs were held back in 6 of 6 trials: power cap" in said
    assert "pair 3 is left out: bucketed: 7.1 % of the CPU time was stolen" in said


def test_a_baseline_and_revisions_are_named() -> None:
    run, trials = a_run(
        {"random": 10_000.0},
        baseline=BaselineUse(name="main", path=".dflash-bench/x", differences=["numpy 2.3, not 2.4"]),
        revision=Revision(commit="a" * 40, dirty=True),
        against=Revision(commit="b" * 40),
    )
    said = flat(shown(run, trials))
    assert "baseline main, in .dflash-bench/x baseline not comparable: numpy 2.3, not 2.4" in said
    assert f"revision {'a' * 12} with changes, against {'b' * 12}" in said


def test_a_stored_clock_is_advice_and_says_so() -> None:
    run, trials = a_run({"random": 10_000.0, "bucketed": 20_000.0})
    advice = msgspec.structs.replace(
        run.comparisons[0],
        reference="baseline main",
        advisory=True,
        verdict=Verdict.REGRESSED,
        reason="no gate",
    )
    text = shown(msgspec.structs.replace(run, comparisons=[advice, *run.comparisons]), trials)
    assert "advisory REGRESSED  bucketed against baseline main: no gate" in text
    assert row(text, "bucketed", 0)[-1] == "IMPROVED", "advice decides nothing"


def test_one_pair_shows_no_interval_and_says_so() -> None:
    text = shown(*a_run({"random": 10_000.0, "bucketed": 20_000.0}, pairs=1))
    assert row(text, "bucketed", 0) == ["bucketed", "20000", "2.000", "50.0 %", "5.1235", "0.000", "\u2013"]
    assert "[" not in text
    said = flat(text)
    assert "no verdict bucketed against random: tok_s 100.0 % higher, 1 pair: a 98 % interval needs 6" in said
    assert "fewer than 6 trials or pairs have no 98 % interval and no verdict" in said


def test_a_failed_arm_keeps_its_row_and_says_why_on_one_line_as_it_is() -> None:
    text = shown(*a_run({"random": 10_000.0, "bucketed": None}), width=140)
    assert row(text, "bucketed", 0)[1:] == ["\u2013"] * 5 + ["ERROR"]
    assert (
        "failed   bucketed: PlanError: strategy 'bucketed' repeats sample 17 [red]in[/red] window 3" in text
    )
    assert row(text, "random", 0)[1] == "10250"


def test_a_single_strategy_and_an_interrupted_run() -> None:
    run, trials = a_run({"random": 10_000.0})
    assert row(shown(run, trials), "random", 0)[1:3] == ["10250", "1"]
    assert "interrupted: only the pairs that were finished count" in flat(
        shown(msgspec.structs.replace(run, exit_code=130), trials)
    )
    assert "interrupted" not in shown(run, trials)


LONG = {"acme/bucketed:buckets=8:boundaries=optimal": 123_456.0, "sorted": 234_567.0, "bucketed": None}


@pytest.mark.parametrize("width", [80, 100, 120, 140])
@pytest.mark.parametrize("speeds", [{"random": 10_000.0, "bucketed": 20_000.0}, LONG])
@pytest.mark.parametrize("pairs", [1, 8])
def test_piped_it_is_plain_text_that_fits(speeds: dict[str, float | None], width: int, pairs: int) -> None:
    text = shown(*a_run(speeds, pairs=pairs), width=width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert not {c for c in text if unicodedata.category(c) == "Cc"} - {"\n"}
    assert all(line == line.rstrip(" ") for line in text.splitlines())
    assert "\u2026" not in text
    for name in speeds:
        squeezed = re.sub(r"\s", "", "".join(line[:28] for line in text.splitlines()))
        assert name[:8] in squeezed


def test_the_default_strategies_fit_80_columns_unbroken() -> None:
    run, trials = a_run({"sorted": 130_000.0, "random": 100_000.0, "step_window": 120_000.0}, pairs=8)
    unsure = [msgspec.structs.replace(c, verdict=Verdict.INCONCLUSIVE) for c in run.comparisons]
    text = shown(msgspec.structs.replace(run, comparisons=unsure), trials, width=80)
    first, second, _ = text.split("\n\n")
    assert [len(table.splitlines()) for table in (first, second)] == [3 + 2 * 3, 3 + 3]


def test_a_terminal_gets_colours_and_the_same_words() -> None:
    run, trials = a_run({"random": 20_000.0, "bucketed": 10_000.0})
    coloured = shown(run, trials, force_terminal=True, color_system="standard")
    assert "\x1b[" in coloured
    plain = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in plain.splitlines()] == shown(run, trials).splitlines()


def test_a_stream_without_unicode_gets_ascii_and_no_exception() -> None:
    run, trials = a_run({"random": 20_000.0, "größer": 10_000.0})
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", newline="\n")
    show(run, trials, None, Console(file=stream, width=100))
    stream.flush()
    text = raw.getvalue().decode("ascii")
    assert "20 500" in text and "gr??er" in text and "[-50.0, -50.0]" in text
    assert "REGRESSED" in text


def test_without_a_console_it_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    show(*a_run({"random": 10_000.0}))
    assert "10\u202f250" in capsys.readouterr().out


def test_a_stored_run_is_shown_as_it_was_when_it_ended(tmp_path: Path) -> None:
    run, trials = a_run(
        {"random": 10_000.0, "bucketed": 9_000.0},
        pairs=10,
        fail_on=["tok_s:5%"],
        metrics={"bucketed": {"notes": ["no steady state: x"], "throttled": ["power cap"]}},
    )
    again = store.load(store.save(run, trials, tmp_path))
    assert shown(*again, verbose=True) == shown(run, trials, verbose=True)
