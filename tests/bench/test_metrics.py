from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.batching.composition import MEASURES
from dflash.bench.metrics import METRICS, PLAN_METRICS, change, metric, number, percent, signed_percent
from dflash.errors import UsageError

NAMES = (
    "tok_s padded_tok_s loss_tok_s padding_efficiency anchor_slot_efficiency label_coverage final_loss "
    "gradient_diversity target_utilisation drafter_utilisation window_seconds cpu_seconds peak_memory_bytes "
    "peak_gpu_memory_bytes wall_seconds predicted_tok_s real_tokens padded_tokens loss_tokens anchor_slots "
    "target_flops_per_token drafter_flops_per_token "
    "fill windows micro_batches predicted_micro_batches variance_ratio window_length_autocorrelation "
    "mate_overlap micro_batch_length_entropy window_length_entropy window_token_variation straggler_ratio "
    "distinct_shapes squared_length_sum largest_micro_batch plan_seconds"
)


def test_the_names_that_results_are_stored_under_never_change() -> None:
    assert list(METRICS) == NAMES.split()
    assert all(name == definition.name for name, definition in METRICS.items())
    assert set(PLAN_METRICS) == {*MEASURES, "plan_seconds"}


def test_rates_are_better_high_and_costs_are_better_low() -> None:
    rates = {m.name: m.direction for m in METRICS.values() if m.unit == "tokens/s"}
    assert rates.pop("predicted_tok_s") == "none", "a prediction is no better for being higher"
    assert set(rates.values()) == {"higher"}
    assert {METRICS[name].direction for name in ("window_seconds", "cpu_seconds", "final_loss")} == {"lower"}


def test_only_clocks_are_paired_and_only_what_plan_and_seed_decide_is_exact() -> None:
    def ruled(rule: str) -> set[str]:
        return {m.name for m in METRICS.values() if m.gate_rule == rule}

    assert ruled("paired") == {"tok_s", "padded_tok_s", "loss_tok_s", "window_seconds", "cpu_seconds"}
    counts = {"real_tokens", "padded_tokens", "loss_tokens", "anchor_slots"}
    shares = {"anchor_slot_efficiency", "label_coverage"}
    flops = {"target_flops_per_token", "drafter_flops_per_token"}
    assert ruled("exact") == {*counts, *shares, *flops, *MEASURES}


def test_units_are_si_base_units_and_counts_of_tokens() -> None:
    units = {m.unit for m in METRICS.values()}
    assert units == {"tokens/s", "1", "nats/token", "s", "B", "bits", "tokens", "tokens^2", "FLOP/token"}


def test_an_unknown_metric_is_a_usage_error_that_names_what_exists() -> None:
    with pytest.raises(UsageError, match=r"unknown metric 'toks'; known: tok_s, padded_tok_s"):
        metric("toks")


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (12431.4, None, "12\u202f431"),
        (1_234_567, 0, "1\u202f234\u202f567"),
        (999.6, None, "1\u202f000"),
        (123.4, None, "123"),
        (12.34, None, "12.3"),
        (0.012345, None, "0.0123"),
        (0, None, "0.00"),
        (-1234.5, 1, "\u22121\u202f234.5"),
        (-0.04, 1, "0.0"),
        (5.1, 4, "5.1000"),
    ],
)
def test_numbers(value: float, digits: int | None, text: str) -> None:
    assert number(value, digits) == text


@settings(deadline=None)
@given(st.floats(1e-6, 1e12))
def test_a_written_number_reads_back_to_three_digits(value: float) -> None:
    assert math.isclose(float(number(value).replace("\u202f", "")), value, rel_tol=0.0051)


@pytest.mark.parametrize(
    ("ratio", "low", "high", "text"),
    [
        (0.939, 0.926, 0.951, "tok_s 6.1 % lower [\u22127.4, \u22124.9]"),
        (2.0, 1.9, 2.1, "tok_s 100.0 % higher [+90.0, +110.0]"),
        (0.9999, 0.99, 1.0, "tok_s unchanged [\u22121.0, 0.0]"),
        (1.0004, 0.9999, 1.01, "tok_s unchanged [0.0, +1.0]"),
        (0.95, None, None, "tok_s 5.0 % lower"),
    ],
)
def test_change_in_words(ratio: float, low: float | None, high: float | None, text: str) -> None:
    assert change("tok_s", ratio, low, high) == text


def test_percent_writes_as_many_decimals_as_a_setting_has() -> None:
    assert [percent(share) for share in (0.98, 0.05, 0.025, 0.07)] == ["98 %", "5 %", "2.5 %", "7 %"]
    assert percent(0.93111, 1) == "93.1 %"


@settings(deadline=None)
@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_signed_percent_keeps_the_order(one: float, other: float) -> None:
    def read(ratio: float) -> float:
        return float(signed_percent(ratio).replace("\u202f", "").replace("\u2212", "-"))

    assert (read(one) <= read(other)) or one > other
    assert abs(read(one) - 100 * (one - 1)) <= 0.0501


@pytest.mark.parametrize("locale", ["C", "de_DE.UTF-8", "fr_FR.UTF-8", "en_IN.UTF-8"])
def test_no_locale_changes_a_number(locale: str) -> None:
    program = """
import locale
try:
    locale.setlocale(locale.LC_ALL, "")
except locale.Error:
    pass
from dflash.batching.composition import MEASURES
from dflash.bench.metrics import change, number
print(ascii(number(1234567.5, 1)), ascii(change("tok_s", 0.939, 0.926, 0.951)))
"""
    environment = os.environ | {"LC_ALL": locale, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("' '") == [
        "'1\\u202f234\\u202f567.5",
        "tok_s 6.1 % lower [\\u22127.4, \\u22124.9]'\n",
    ]
