from __future__ import annotations

import locale
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_records import a_run

from dflash.bench import junit, markdown
from dflash.bench.results import Run, Trial


def table(text: str) -> list[list[str]]:
    """The cells of the first table, as GitHub splits them: at pipes that no backslash escapes."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [[re.sub(r"\\(.)", r"\1", cell) for cell in row] for row in rows]


def test_the_table_has_the_figures_of_every_arm() -> None:
    text = markdown.render(*a_run({"random": 20_000.0, "bucketed": 18_000.0}, fail_on=["tok_s:5%"]))
    header, rule, *rows = table(text)
    assert header == [
        "strategy",
        "real tok/s",
        "ratio",
        "padding efficiency",
        "final loss",
        "gradient diversity",
        "verdict",
    ]
    assert rule == ["---", *["---:"] * 5, "---"]
    assert rows == [
        ["random", "20 500 [20 000, 21 000]", "1", "50.0 %", "5.1235", "0.000", "reference"],
        [
            "bucketed",
            "18 450 [18 000, 18 900]",
            "0.900 [0.900, 0.900]",
            "50.0 %",
            "5.1235",
            "0.000",
            "REGRESSED",
        ],
    ]


def test_the_verdicts_stand_above_and_below_it() -> None:
    text = markdown.render(*a_run({"random": 20_000.0, "bucketed": 18_000.0}, fail_on=["tok_s:5%"]))
    assert text.startswith("### dflash-bench: REGRESSED\n\n| ")
    (gate,) = [line for line in text.splitlines() if line.startswith("- **REGRESSED**")]
    assert "bucketed against random, tok\\_s:5%: tok\\_s 10.0 % lower \\[\u221210.0" in gate
    assert "6 pairs: worse" in gate


def test_a_failed_arm_cannot_break_the_page() -> None:
    text = markdown.render(*a_run({"random": 20_000.0, "bucketed": None}))
    (line,) = [line for line in text.splitlines() if line.startswith("- **ERROR** bucketed: ")]
    assert "\\|" in line and "\\<b\\>" in line and "\x1b" not in text
    assert table(text)[3] == ["bucketed", *["\u2013"] * 5, "ERROR"]


@given(st.text(min_size=1).filter(str.strip))
def test_whatever_a_strategy_is_called_it_stays_in_its_cell(name: str) -> None:
    run, trials = a_run({"random": 20_000.0})
    (arm,) = run.arms
    renamed = msgspec.structs.replace(run, arms=[msgspec.structs.replace(arm, strategy=name)])
    rows = table(markdown.render(renamed, trials))
    assert len(rows) == 3
    assert {len(row) for row in rows} == {7}


def reports(run: Run, trials: list[Trial]) -> list[str | bytes]:
    return [markdown.render(run, trials), junit.render(run, trials)]


def test_a_comma_as_decimal_mark_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    run, trials = a_run({"random": 20_000.0, "bucketed": 18_000.0}, fail_on=["tok_s:5%"])
    expected = reports(run, trials)
    before = locale.setlocale(locale.LC_ALL)
    try:
        locale.setlocale(locale.LC_ALL, "de_DE.UTF-8")
    except locale.Error:
        comma = locale.localeconv() | {"decimal_point": ",", "thousands_sep": "."}
        monkeypatch.setattr(locale, "localeconv", lambda: comma)
    try:
        assert reports(run, trials) == expected
    finally:
        locale.setlocale(locale.LC_ALL, before)
