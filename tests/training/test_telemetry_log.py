"""Telemetry of real runs: seconds that add up, intervals that add up, files, observers that fail."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import msgspec
import pytest

from dflash.data.sources import open_store
from dflash.errors import PluginError, UsageError
from dflash.pipeline import ENGINES, StageTelemetry, Telemetry
from dflash.pipeline.work import Counts
from dflash.plugin_manager import NamedObserver, PluginWarning
from dflash.training.events import of_interval, of_result, run_end
from dflash.training.meter import Every, Meter
from dflash.training.models import ModelsApart, load_models
from dflash.training.plans import plan_run
from dflash.training.progress import Progress
from dflash.training.run import training_run
from dflash.training.schedule import held_out_micro_batches, in_training_order
from dflash.training.step import EvaluationResult, SaveResult, WindowResult
from dflash.training.telemetry_log import TelemetryLog
from dflash.training.watch import Audience, Watch

PARTS = ("busy", "starved", "blocked", "copy", "barrier")
TWO_WINDOWS = Every(2, "w")


@dataclass
class Recorder:
    """An observer that keeps what it is told, and fails where it is asked to."""

    fails_at: str = ""

    def __post_init__(self):
        self.events = []

    def open(self, run):
        if self.fails_at == "open":
            raise RuntimeError("no such server")
        self.tell(run)
        return self.tell

    def tell(self, event):
        if event["type"] == self.fails_at:
            raise RuntimeError("the server has gone")
        json.dumps(event, allow_nan=False)
        self.events.append(event)

    @property
    def types(self):
        return [event["type"] for event in self.events]


def small_run(config, engine, windows, drafters=1):
    """A context manager: a run on ``engine``, its store, and how many windows it has."""
    pipeline = msgspec.structs.replace(config.pipeline, engine=engine, drafters=drafters, targets=2)
    training = msgspec.structs.replace(config.training, windows=windows)
    config = msgspec.structs.replace(config, pipeline=pipeline, training=training)
    store = open_store(config.data)
    plans = plan_run(config, store)
    staff = ModelsApart(config) if engine == "process" else load_models(config, store)
    work = in_training_order(
        plans.training_windows(), held_out_micro_batches(store, config), [0, plans.total], drafters=drafters
    )
    return training_run(config, store, staff, work, plans.total), store


@pytest.mark.parametrize("engine", ENGINES)
def test_the_seconds_of_every_stage_are_those_of_the_clock(small_config, engine):
    """Two moments of a real run, timed by the test's own clock: each stage's five parts are what passed."""
    running, _ = small_run(small_config, engine, windows=12, drafters=2)
    with running as run:
        results = iter(run.results)
        next(result for result in results if isinstance(result, WindowResult))
        earlier, before = run.telemetry(), time.perf_counter()
        for _, _ in zip(range(8), results, strict=False):
            pass
        later, after = run.telemetry(), time.perf_counter()
        list(results)
    between = later - earlier
    names = [stage.name for stage in between.stages]
    assert names == [
        *("feed", "prefetch-0", "target-0", "target-1", "drafter-0", "drafter-1", "caller"),
    ]
    for stage in between.stages:
        if stage.name in ("feed", "prefetch-0"):
            continue  # may have ended by then
        parts = [getattr(stage, part) for part in PARTS]
        assert min(parts) >= 0, stage
        assert sum(parts) == pytest.approx(after - before, rel=0.01, abs=2e-3), stage
    drafters = [stage for stage in between.stages if stage.name.startswith("drafter")]
    assert all(drafter.barrier > 0 for drafter in drafters)
    whole = run.telemetry()
    assert {channel.name for channel in whole.channels} >= {"work", "batches", "features-0", "slots-1"}
    for channel in whole.channels:
        assert channel.items == 0
        assert channel.seconds_full + channel.seconds_empty <= whole.seconds * 1.01, channel


def test_intervals_add_up_to_the_whole(small_config):
    running, _ = small_run(small_config, "thread", windows=5)
    intervals, results = [], []
    with running as run:
        meter = Meter(run.telemetry, TWO_WINDOWS)
        for result in run.results:
            results.append(result)
            if (interval := meter.add(result)) is not None:
                intervals.append(interval)
        intervals.append(meter.rest())
        whole = meter.whole()
    windows = [result for result in results if isinstance(result, WindowResult)]
    assert [interval.windows for interval in intervals] == [2, 2, 1]
    assert [interval.done for interval in intervals] == [2, 4, 5]
    assert sum((interval.counts for interval in intervals), Counts()) == whole.counts
    assert whole.counts == sum((window.counts for window in windows), Counts())
    assert sum(interval.seconds for interval in intervals) == pytest.approx(whole.seconds, rel=0.01)
    weight = sum(window.weight for window in windows)
    assert whole.loss == pytest.approx(sum(window.loss * window.weight for window in windows) / weight)
    told = of_interval(whole)
    for kind in ("real", "padded", "loss"):
        tokens = sum(getattr(window.counts, f"{kind}_tokens") for window in windows)
        assert told[f"{kind}_tokens_per_second"] * told["seconds"] == pytest.approx(tokens)
    assert told["bottleneck"] in ("target", "target-0", "target-1", "drafter", "prefetch", "caller")


@pytest.mark.parametrize(
    ("stages", "named"),
    [
        # All targets are busy, the drafter waits for them.
        ([("target-0", 9, 0), ("target-1", 8, 0), ("drafter-0", 5, 0)], "target"),
        # Drafters that wait for each other wait for no target.
        ([("target-0", 7, 0), ("drafter-0", 6, 3), ("drafter-1", 6, 3)], "drafter"),
        # One drafter has more to do than the rest of its kind.
        ([("target-0", 7, 0), ("drafter-0", 5, 5), ("drafter-1", 10, 0)], "drafter-1"),
        ([("feed", 1, 0), ("prefetch-0", 9, 0), ("prefetch-1", 9, 0), ("target-0", 8, 0)], "prefetch"),
        ([("feed", 1, 0), ("target-0", 2, 0), ("caller", 5, 0)], "caller"),
    ],
)
def test_the_bottleneck_is_whom_the_others_wait_for(stages, named):
    telemetry = Telemetry(
        seconds=10.0,
        channels=(),
        stages=tuple(
            StageTelemetry(name=name, wall=10, busy=busy, barrier=barrier, starved=10 - busy - barrier)
            for name, busy, barrier in stages
        ),
    )
    assert telemetry.bottleneck == named


@pytest.mark.parametrize(
    ("text", "every"), [("10s", (10.0, "s")), ("0.5s", (0.5, "s")), (" 50w ", (50.0, "w"))]
)
def test_an_interval_is_seconds_or_windows(text, every):
    assert Every.parse(text) == Every(*every)


@pytest.mark.parametrize("text", ["", "10", "s", "-1s", "0w", "0s", "1.5w", "10m", "1w2"])
def test_another_interval_is_refused(text):
    with pytest.raises(UsageError, match=r"write seconds or windows, e\.g\. 10s or 50w"):
        Every.parse(text)


def watched(config, folder, audience, fail=None):
    """Run five windows under a watch; ``fail`` is raised at the third."""
    running, store = small_run(config, "thread", windows=5)
    progress = Progress(5, "random", store, folder)
    with (
        Watch(audience, progress, folder=folder, windows=5, first=0, manifest={"a": 1}) as watch,
        running as run,
    ):
        watch.begins(run.telemetry)
        for result in run.results:
            if fail is not None and isinstance(result, WindowResult) and result.window == 2:
                raise fail
            watch.result(result)
        watch.result(SaveResult(5, folder / "a"))


def test_the_file_has_a_line_per_interval_and_the_whole_run_last(small_config, tmp_path):
    path = tmp_path / "telemetry.jsonl"
    recorder = Recorder()
    watched(small_config, tmp_path, Audience(TWO_WINDOWS, path, [NamedObserver("recorder", recorder)]))
    first, *middle, last = map(json.loads, path.read_text().splitlines())
    assert first == {
        "type": "run_start",
        "folder": str(tmp_path),
        "windows": 5,
        "first": 0,
        "manifest": {"a": 1},
    }
    assert [(line["type"], line["windows"], line["done"]) for line in middle] == [
        ("telemetry", 2, 2),
        ("telemetry", 2, 4),
        ("telemetry", 1, 5),
    ]
    assert (last["type"], last["reason"], last["message"], last["windows"]) == (
        "run_end",
        "finished",
        None,
        5,
    )
    assert last["counts"]["real_tokens"] == sum(line["counts"]["real_tokens"] for line in middle)
    for line in (*middle, last):
        for stage in line["stages"]:
            assert sum(stage[part] for part in PARTS) == pytest.approx(stage["wall"], rel=0.01, abs=1e-6)
            assert stage["wall"] <= line["seconds"] * 1.01
    # Observers hear the same, and everything else.
    assert [event for event in recorder.events if event["type"] in ("run_start", "telemetry", "run_end")] == [
        first,
        *middle,
        last,
    ]
    assert recorder.types == [
        *("run_start", "evaluation", "window", "window", "telemetry", "window", "window", "telemetry"),
        *("window", "evaluation", "checkpoint", "telemetry", "run_end"),
    ]
    windows = [event for event in recorder.events if event["type"] == "window"]
    assert windows[0].keys() == {"type", *(field.name for field in fields(WindowResult))}


def test_a_run_that_fails_says_so_in_its_last_line(small_config, tmp_path):
    path = tmp_path / "telemetry.jsonl"
    with pytest.raises(RuntimeError, match="boom"):
        watched(small_config, tmp_path, Audience(Every(1, "w"), path), fail=RuntimeError("boom"))
    *_, last = map(json.loads, path.read_text().splitlines())
    assert (last["reason"], last["message"], last["done"]) == ("failed", "boom", 2)
    watched(small_config, tmp_path, Audience(Every(9, "w"), path))
    types = [json.loads(line)["type"] for line in path.read_text().splitlines()]
    assert types.count("run_start") == types.count("run_end") == 2, "a second run is appended"


def test_an_observer_that_fails_is_warned_of_once_and_ends_nothing(small_config, tmp_path):
    bad, good = Recorder(fails_at="window"), Recorder()
    audience = Audience(TWO_WINDOWS, None, [NamedObserver("bad", bad), NamedObserver("good", good)])
    with pytest.warns(PluginWarning) as warned:
        watched(small_config, tmp_path, audience)
    (message,) = [str(warning.message) for warning in warned if warning.category is PluginWarning]
    assert "observer bad" in message and "RuntimeError: the server has gone" in message
    assert bad.types == ["run_start", "evaluation"]
    assert good.types.count("window") == 5 and good.types[-1] == "run_end"


def test_an_observer_that_cannot_begin_refuses_the_run(small_config, tmp_path):
    audience = Audience(TWO_WINDOWS, None, [NamedObserver("bad", Recorder(fails_at="open"))])
    with pytest.raises(PluginError, match="observer bad cannot begin: RuntimeError: no such server"):
        watched(small_config, tmp_path, audience)


def test_a_disk_that_is_full_ends_the_telemetry_and_not_the_run(small_config, tmp_path):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    with pytest.warns(PluginWarning, match="/dev/full failed at run_start"):
        watched(small_config, tmp_path, Audience(TWO_WINDOWS, full))


def test_a_file_that_cannot_be_written_is_refused_before_the_run(tmp_path):
    with pytest.raises(UsageError, match=r"cannot write telemetry to .*: No such file or directory"):
        TelemetryLog(tmp_path / "missing" / "telemetry.jsonl")


def test_events_are_json(tmp_path):
    evaluation = EvaluationResult(3, None, [None, 0.5])
    assert json.loads(json.dumps(of_result(evaluation))) == {"type": "evaluation", **asdict(evaluation)}
    assert of_result(SaveResult(4, tmp_path)) == {"type": "checkpoint", "window": 4, "path": str(tmp_path)}
    assert run_end("failed", "no", None) == {"type": "run_end", "reason": "failed", "message": "no"}
