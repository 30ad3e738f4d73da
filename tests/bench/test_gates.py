from __future__ import annotations

import locale

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.bench.gates import Rules, parse_gate, parse_gates, parse_percent, plain_name
from dflash.errors import UsageError


@pytest.mark.parametrize(
    ("text", "strategy", "metric", "tolerance"),
    [
        ("tok_s:5%", None, "tok_s", 0.05),
        ("bucketed.padding_efficiency:0.1%", "bucketed", "padding_efficiency", 0.001),
        (" bucketed:buckets=4.tok_s:0%", "bucketed:buckets=4", "tok_s", 0.0),
        ("mine:share=0.5.window_seconds:150%", "mine:share=0.5", "window_seconds", 1.5),
        ("some-dist/mine.tok_s: 2.5 %", "some-dist/mine", "tok_s", 0.025),
    ],
)
def test_a_gate_is_strategy_metric_and_percentage(
    text: str, strategy: str | None, metric: str, tolerance: float
) -> None:
    gate = parse_gate(text)
    assert (gate.strategy, gate.metric.name) == (strategy, metric)
    assert gate.tolerance == pytest.approx(tolerance)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tok_s", "write .*METRIC:PERCENT"),
        ("", "write .*METRIC:PERCENT"),
        ("tok_s:abc", "'abc' is no percentage"),
        ("tok_s:5", "'5' is no percentage"),
        ("tok_s:5,5%", "no percentage"),
        ("tok_s:-5%", "no percentage"),
        ("tok_s:nan%", "no percentage"),
        ("tok_s:inf%", "no percentage"),
        ("tok_s:\u0665%", "no percentage"),
        ("tok_s:100%", "cannot lose 100%"),
        ("toks:5%", "unknown metric 'toks'; gates are for tok_s, "),
        (".:5%", "unknown metric ''"),
        ("wall_seconds:5%", "trials of one seed cannot decide wall_seconds"),
        ("peak_memory_bytes:5%", "trials of one seed cannot decide peak_memory_bytes"),
    ],
)
def test_what_is_no_gate_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as raised:
        parse_gate(text)
    assert str(raised.value).startswith(f"--fail-on {text!r}: ") and "\n" not in str(raised.value)


@given(st.decimals(0, 99, places=3))
def test_percentages_are_shares_in_any_locale(percent: object) -> None:
    before = locale.setlocale(locale.LC_NUMERIC)
    for name in ("de_DE.UTF-8", "C"):
        try:
            locale.setlocale(locale.LC_NUMERIC, name)
        except locale.Error:
            continue
        try:
            assert parse_percent(f"{percent}%", "here") == pytest.approx(float(str(percent)) / 100)
        finally:
            locale.setlocale(locale.LC_NUMERIC, before)


def test_the_most_particular_gate_binds() -> None:
    rules = Rules(gates=parse_gates(["tok_s:5%", "bucketed.tok_s:3%", "bucketed:buckets=4.tok_s:1%"]))
    for arm, text in (
        ("random", "tok_s:5%"),
        ("bucketed", "bucketed.tok_s:3%"),
        ("bucketed:buckets=16", "bucketed.tok_s:3%"),
        ("bucketed:buckets=4", "bucketed:buckets=4.tok_s:1%"),
    ):
        gate = rules.gate_of(arm, "tok_s")
        assert gate is not None and gate.text == text
    assert rules.gate_of("bucketed", "padded_tok_s") is None


def test_two_gates_on_one_thing_are_a_mistake() -> None:
    with pytest.raises(UsageError, match="bind one metric: keep one"):
        parse_gates(["tok_s:5%", "tok_s:3%"])


def test_the_plain_name_is_without_options_revision_and_distribution() -> None:
    names = [
        "bucketed",
        "bucketed:buckets=4",
        "bucketed@main",
        "bucketed:buckets=4@main",
        "dist/bucketed:a=b/c",
    ]
    assert {plain_name(name) for name in names} == {"bucketed"}
