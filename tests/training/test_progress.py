"""What a person sees: lines where there is no terminal; and a view that always fits into one."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from dflash.data.store import TokenStore
from dflash.pipeline import StageTelemetry, Telemetry
from dflash.pipeline.core import ChannelStatistics
from dflash.pipeline.work import Counts
from dflash.training.live_view import LiveView, Recent
from dflash.training.meter import Interval
from dflash.training.progress import Progress
from dflash.training.step import EvaluationResult, SaveResult, WindowResult

PARTS = ("busy", "starved", "blocked", "copy", "barrier")
NAMES = ["feed", "prefetch-0", *(f"target-{n}" for n in range(6)), "drafter-0", "drafter-1", "caller"]
COUNTS = Counts(samples=3, real_tokens=600, padded_tokens=800, supervised_tokens=500, loss_tokens=300)

seconds = st.floats(0, 1e6, allow_subnormal=False)


def stage(name, **parts):
    return StageTelemetry(name=name, wall=sum(parts.values()), **parts)


def telemetry(parts, seconds=10.0):
    queues = tuple(
        ChannelStatistics(
            name=name,
            items=1,
            bytes=0,
            peak_items=3,
            peak_bytes=0,
            total_items=9,
            seconds_full=1.0,
            seconds_empty=1.0,
            waiting_senders=0,
            waiting_receivers=0,
        )
        for name in ("work", "features-0", "features-1")
    )
    stages = tuple(stage(name, **dict(zip(PARTS, values, strict=True))) for name, values in parts.items())
    return Telemetry(seconds=seconds, stages=stages, channels=queues)


def drawn(view, width, height, encoding="utf-8"):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    console = Console(file=file, width=width, height=height, force_terminal=True, color_system=None)
    console.print(view)
    file.flush()
    return file.buffer.getvalue().decode(encoding).splitlines()


@given(
    st.lists(st.tuples(*[seconds] * 5), min_size=11, max_size=11),
    st.integers(1, 220),
    st.integers(2, 60),
    st.sampled_from(["utf-8", "ascii"]),
)
def test_the_view_fits_into_any_terminal(times, width, height, encoding):
    view = LiveView(
        ["window 12/99  loss 5.000", "12,000 real"], telemetry(dict(zip(NAMES, times, strict=True)))
    )
    lines = drawn(view, width, height, encoding)
    assert len(lines) <= max(1, height - 1)
    assert all(cell_len(line) <= width for line in lines)


def test_a_bar_is_as_long_as_its_time():
    """Ten cells for ten seconds: 5 busy, 1 copy, 1 barrier, 2 blocked, 1 starved."""
    view = LiveView([], telemetry({"target-0": (5, 1, 2, 1, 1), "drafter-0": (0, 10, 0, 0, 0)}))
    width = len("drafter-0 ") + 10 + len(" 100% busy")
    target, drafter, legend, queues = drawn(view, width, 40)[:4]
    assert target == "target-0  " + "█" * 5 + "▓" + "▒" + "░" * 2 + "·" + "  50% busy"
    assert drafter == "drafter-0 " + "·" * 10 + "   0% busy"
    assert legend.startswith("█ busy")
    assert queues.startswith("queued now/peak: work 1/3")
    ascii_target = drawn(view, width, 40, "ascii")[0]
    assert ascii_target == "target-0  #####=+--.  50% busy"


def test_a_low_terminal_gets_a_bar_for_each_kind_of_worker():
    times = dict.fromkeys(NAMES, (1, 1, 1, 1, 1)) | {"target-0": (4, 0, 1, 0, 0)}
    view = LiveView(["one", "two"], telemetry(times))
    lines = drawn(view, 80, 11)
    kinds = [line.split()[0] for line in lines[2:7]]
    assert kinds == ["feed", "prefetch", "target", "drafter", "caller"]
    assert lines[4].endswith(" 30% busy"), "the mean of 4/5 and five times 1/5"
    assert lines[3].endswith(" 20% busy")
    assert [line.split()[0] for line in drawn(view, 80, 40)[2:13]] == NAMES


def test_what_is_shown_is_of_the_last_seconds():
    moments = iter(telemetry({"a": (float(now), 0, 0, 0, 0)}, float(now)) for now in range(100))
    recent = Recent(lambda: next(moments), seconds=10.0)
    shown = [recent.telemetry() for _ in range(40)]
    assert [one.seconds for one in shown] == [min(now, 10.0) for now in range(40)]
    assert shown[-1].stages[0].busy == 10.0


def window(number, at, bad_rows=()):
    return WindowResult(
        window=number,
        epoch=0,
        loss=6.5,
        weight=10.0,
        accuracy_B=[None, 0.5, 0.25],
        gradient_norm=1.0,
        learning_rate=1e-3,
        gradient_diversity=None,
        gradient_cosine=None,
        counts=COUNTS,
        bad_rows=list(bad_rows),
        committed_at=at,
    )


@pytest.fixture
def told(small_store, tmp_path):
    """What a progress without a terminal prints, and the progress."""
    file = io.StringIO()
    console = Console(file=file, width=40, highlight=False)
    progress = Progress(100, "random", TokenStore.open(small_store), tmp_path / "run", 0, console)
    return file, progress


def test_a_pipe_gets_one_line_per_interval(told):
    file, progress = told
    now = telemetry({"target-0": (9, 1, 0, 0, 0), "drafter-0": (5, 5, 0, 0, 0)}, seconds=4.0)
    with progress:
        progress.begins(lambda: now)
        for number in range(3):
            progress.window(window(number, at=2.0 * number))
        before = file.getvalue()
        counts = COUNTS + COUNTS
        progress.interval(Interval(4.0, 3, 2, counts, 6.5, now))
    (line,) = file.getvalue().removeprefix(before).splitlines()
    # 2 x (600, 800, 300) tokens in 4 s; 97 windows left at 2 s each.
    assert line == (
        "window     3/100  epoch 0  loss 6.500  accuracy 0.50/0.25 at slots 1/2  "
        "300 real, 400 padded, 150 loss tok/s  padding efficiency 0.750  bottleneck target  3 min 14 s left"
    )
    assert "\x1b" not in file.getvalue()


def test_rows_that_are_left_out_evaluations_and_the_end_are_told_at_once(told, tmp_path):
    file, progress = told
    with progress:
        progress.window(window(0, at=0.0, bad_rows=[7, 9]))
        progress.evaluation(EvaluationResult(0, 7.0, [None, 0.1]))
        progress.evaluation(EvaluationResult(1, 6.0, [None, 0.2]))
        progress.evaluation(EvaluationResult(2, None, [None, None]))
        progress.saved(SaveResult(1, tmp_path))
        progress.interrupted(tmp_path / "drafter")
        progress.finished()
    text = re.sub(r"\s+", " ", file.getvalue())
    assert "window 0: features not finite, left out: store rows 7, 9" in text
    assert "window 1 held-out loss 6.0000 accuracy 0.20 at slots 1" in text
    assert "the weights after 1 windows are in" in text
    assert "held-out loss 7.0000 -> 6.0000" in text


def test_a_terminal_gets_the_view_and_is_left_clean(small_store, tmp_path):
    file = io.StringIO()
    console = Console(
        file=file, width=100, height=30, force_terminal=True, color_system=None, highlight=False
    )
    progress = Progress(100, "random", TokenStore.open(small_store), tmp_path / "run", 0, console)
    with progress:
        progress.begins(lambda: telemetry({"target-0": (9, 1, 0, 0, 0)}))
        progress.window(window(0, at=0.0))
        progress.window(window(1, at=2.0))
        progress.interval(Interval(4.0, 3, 2, COUNTS, 6.5, telemetry({"target-0": (9, 1, 0, 0, 0)})))
        progress._live.refresh()
    shown = file.getvalue()
    assert "target-0 █████" in shown and "300 real, 400 padded, 150 loss tok/s" in shown
    assert "bottleneck target" in shown and "3 min 16 s left" in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1, "the cursor is there again"
    assert "\x1b[2J" not in shown, "drawn over in place, never wiped"
