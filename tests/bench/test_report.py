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

from dflash.bench.machine import Machine
from dflash.bench.report import show
from dflash.bench.results import Arm, Data, Plugin, Run, Settings, Trial, assemble

MACHINE = Machine(
    cpu="Some CPU @ 2.00GHz",
    cores=2,
    cpu_quota=1.5,
    memory_bytes=8 * 2**30,
    gpus=["Some GPU"],
    platform="Linux x86_64",
    python="3.11.9",
    versions={"torch": "2.13.0", "transformers": None},
    threads={"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": None},
)
FAILURE = "PlanError: strategy 'bucketed' repeats sample 17 [red]in[/red]\nwindow 3\x1b[31m\x07"


def trial(pair: int, arm: str, tok_s: float, **metrics: float | None) -> Trial:
    figures: dict[str, float | None] = {
        "tok_s": tok_s,
        "padded_tok_s": 2 * tok_s,
        "loss_tok_s": tok_s / 3,
        "padding_efficiency": 0.5,
        "anchor_slot_efficiency": 0.875,
        "label_coverage": 0.631,
        "final_loss": 5.12345,
        "gradient_diversity": 0.0,
        "target_utilisation": 0.914,
        "drafter_utilisation": None,
    }
    return Trial(
        pair=pair,
        slot=0,
        arm=arm,
        seed=0,
        status="ok",
        metrics=figures | metrics,
        losses=[1.0],
        bottleneck="target",
    )


def a_run(speeds: dict[str, float | None], pairs: int = 6, **changes: Any) -> tuple[Run, list[Trial]]:
    """Every arm after the first against the first; no speed: the arm fails."""
    reference, *others = speeds
    trials = []
    for pair in range(pairs):
        for which, arm in enumerate(others or [None]):
            for side in (reference, arm) if arm else (reference,):
                speed = speeds[side]
                number = pair * max(1, len(others)) + which
                if speed is None:
                    trials.append(
                        Trial(pair=number, slot=1, arm=side, seed=0, status="failed", error=FAILURE)
                    )
                else:
                    trials.append(trial(number, side, speed * (1 + pair / 100)))
    plugin = Plugin(distribution="dflash", version="0.1.0", file_hash="abc")
    run = assemble(
        "01ARZ3NDEKTSV4RRFFQ69G5FAV",
        reference,
        [Arm(strategy=name, options={}, plugin=plugin) for name in speeds],
        trials,
        Settings(
            token_budget=4096, accumulation=2, drafters=1, warmup_windows=2, windows=6, rounds=6, seed=7
        ),
        Data(name="sample", fingerprint="f00dcafe", samples=11_873, tokens=1_234_567),
        MACHINE,
    )
    return msgspec.structs.replace(run, **changes), trials


def shown(run: Run, trials: list[Trial], width: int = 100, stored: Path | None = None, **options: Any) -> str:
    stream = io.StringIO()
    show(run, trials, stored, Console(file=stream, width=width, **options))
    return stream.getvalue()


def row(text: str, strategy: str, table: int) -> list[str]:
    """The cells of the strategy's row in the first or second table."""
    lines = [line for line in text.splitlines() if line.startswith(f"{strategy} ")]
    return re.split(r" {2,}", lines[table].replace("\u202f", ""))


def test_a_row_holds_speed_ratio_and_bounds() -> None:
    text = shown(*a_run({"random": 10_000.0, "bucketed": 20_000.0}))
    assert row(text, "random", 0) == ["random", "10250", "[10000, 10500]", "1", "reference", "20500", "3417"]
    assert row(text, "bucketed", 0) == [
        "bucketed",
        "20500",
        "[20000, 21000]",
        "2.000",
        "[2.000, 2.000]",
        "41000",
        "6833",
    ]
    assert "10\u202f250" in text


def test_a_row_holds_the_causes_and_null_is_not_zero() -> None:
    text = shown(*a_run({"random": 10_000.0, "bucketed": 20_000.0}))
    assert row(text, "bucketed", 1) == [
        "bucketed",
        "50.0 %",
        "87.5 %",
        "63.1 %",
        "5.1235",
        "0.000",
        "91 %",
        "\u2013",
        "target",
    ]


def test_what_was_measured_where_is_said() -> None:
    text = shown(*a_run({"random": 10_000.0, "bucketed": 20_000.0}), stored=Path("x/01ARZ.parquet"))
    flat = " ".join(text.split())
    assert "data sample: 11 873 samples, 1 234 567 real tokens, f00dcafe" in flat
    assert "12, 0 failed; each 2 warm-up and 6 measured windows of 2 micro-batches" in flat
    assert "token budget 4 096, seed 7" in flat
    assert (
        "Some CPU @ 2.00GHz, 2 cores, quota 1.50, 8 GiB, Some GPU, Linux x86_64, Python 3.11.9, "
        "torch 2.13.0, OMP_NUM_THREADS=1"
    ) in flat
    assert "each end is a one-sided 98 % bound" in flat
    assert text.endswith("stored   x/01ARZ.parquet\n")
    assert "IMPROVED bucketed against random: tok_s 100.0 % higher [+100.0, +100.0], 6 pairs: better" in flat


def test_one_pair_shows_no_interval_and_says_so() -> None:
    text = shown(*a_run({"random": 10_000.0, "bucketed": 20_000.0}, pairs=1))
    assert row(text, "bucketed", 0) == ["bucketed", "20000", "2.000", "40000", "6667"]
    assert "[" not in text
    flat = " ".join(text.split())
    assert "no verdict bucketed against random: tok_s 100.0 % higher, 1 pair: a 98 % interval needs 6" in flat
    assert "fewer than 6 trials or pairs have no 98 % interval and no verdict" in flat


def test_a_failed_arm_keeps_its_row_and_says_why_on_one_line_as_it_is() -> None:
    text = shown(*a_run({"random": 10_000.0, "bucketed": None}), width=140)
    assert row(text, "bucketed", 0)[1:] == ["\u2013"] * 4
    assert (
        "failed   bucketed: PlanError: strategy 'bucketed' repeats sample 17 [red]in[/red] window 3" in text
    )
    assert row(text, "random", 0)[1] == "10250"


def test_a_single_strategy_and_an_interrupted_run() -> None:
    run, trials = a_run({"random": 10_000.0})
    assert row(shown(run, trials), "random", 0)[1:4] == ["10250", "[10000, 10500]", "1"]
    assert "interrupted: only the pairs that were finished count" in shown(
        msgspec.structs.replace(run, exit_code=130), trials
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


def test_the_default_strategies_take_one_line_each_at_80_columns() -> None:
    text = shown(*a_run({"sorted": 130_000.0, "random": 100_000.0, "bucketed": 120_000.0}, pairs=8), width=80)
    first, second, _ = text.split("\n\n")
    assert [len(table.splitlines()) for table in (first, second)] == [6, 6]


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
