"""Observers from plugins: found, named, refused, and told of a real run from the command line."""

from __future__ import annotations

import json
import os
import sys

import pytest
from commands import run_command

from dflash.config import dump_config
from dflash.errors import PluginError, UsageError
from dflash.hookspecs import ObserverSpec
from dflash.plugin_manager import PluginManager, PluginWarning

RECORDER = """
import json
from dataclasses import dataclass
from dflash.hookspecs import ObserverSpec, hookimpl

@dataclass(frozen=True)
class Recorder:
    path: str = "events.jsonl"
    fails_at: str = ""

    def open(self, run):
        self.write(run)
        return self.write

    def write(self, event):
        if event["type"] == self.fails_at:
            raise RuntimeError("gone")
        with open(self.path, "a") as file:
            file.write(json.dumps(event) + chr(10))

@hookimpl
def dflash_observers():
    return [ObserverSpec("{name}", "writes what it hears", Recorder)]
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a distribution with one plugin; returns the folder to put on sys.path."""
    before = set(sys.modules)
    monkeypatch.delenv("DFLASH_DISABLE_PLUGIN_AUTOLOAD", raising=False)

    def put(distribution, source, entry="recorder"):
        site = tmp_path / f"{distribution}-site"
        info = site / f"{distribution}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[dflash]\n{entry} = plugin_{distribution}\n")
        (site / f"plugin_{distribution}.py").write_text(source)
        monkeypatch.syspath_prepend(site)
        return site

    yield put
    for module in set(sys.modules) - before:
        if module.startswith("plugin_"):
            del sys.modules[module]


def named(name):
    return RECORDER.replace("{name}", name)


def test_an_observer_is_found_with_its_options(install):
    install("one", named("recorder"))
    manager = PluginManager()
    (record,) = [one for one in manager.observer_records() if one.distribution == "one"]
    assert (record.full_name, record.version) == ("one/recorder", "1.0")
    assert [option.name for option in record.options] == ["path", "fails_at"]
    first, second = manager.observers("recorder:path=a.jsonl, one/recorder")
    assert (first.observer.path, second.observer.path) == ("a.jsonl", "events.jsonl")
    assert "recorder" not in [one.name for one in manager.strategies()], "it offers no strategy"
    with pytest.raises(UsageError, match="observer 'recorder' has no option 'pth'; it has path, fails_at"):
        manager.observers("recorder:pth=a")
    with pytest.raises(UsageError, match=r"unknown observer 'recordr'; available: .*recorder"):
        manager.observers("recordr")


def test_two_of_one_name_must_be_told_apart(install):
    install("one", named("recorder"))
    install("two", named("recorder"))
    with pytest.raises(
        PluginError, match="both claim the name 'recorder': choose one/recorder or two/recorder"
    ):
        PluginManager().observers("recorder")
    assert PluginManager().observers("two/recorder")[0].name == "two/recorder"


def test_a_broken_or_blocked_one_says_so(install):
    install("one", named("recorder").replace("frozen=True", "frozen=False"))
    with pytest.warns(PluginWarning, match="observer 'recorder': .* is not a frozen dataclass type"):
        manager = PluginManager()
        with pytest.raises(PluginError, match=r"plugin one/recorder 1\.0 is BROKEN"):
            manager.observers("recorder")
    with pytest.raises(PluginError, match="is blocked: by -p no:recorder"):
        PluginManager(blocked=["recorder"]).observers("recorder")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "Not Good"}, "observer name 'Not Good'"),
        ({"summary": "two\nlines"}, "observer 'x': the summary must be one line"),
        ({"observer": int}, "is not a frozen dataclass type"),
    ],
)
def test_a_bad_spec_is_refused(change, message):
    with pytest.raises(PluginError, match=message):
        ObserverSpec(**{"name": "x", "summary": "y", "observer": int, **change})


def test_a_run_tells_observers_and_the_telemetry_file(install, small_config, tmp_path):
    site = install("one", named("recorder"))
    (tmp_path / "run.toml").write_text(dump_config(small_config))
    env = {"PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}
    arguments = ("train", "--config", "run.toml", "--windows", "4", "--telemetry", "telemetry.jsonl")
    observers = "recorder,recorder:path=other.jsonl:fails_at=window"
    result = run_command(
        "dflash",
        *(*arguments, "--telemetry-every", "2w", "--observe", observers, "--out", "run"),
        cwd=tmp_path,
        env=env,
    )
    assert result.code == 0, result.err
    warnings = [line for line in result.err.splitlines() if "warning" in line]
    assert len(warnings) == 1 and "observer recorder" in warnings[0] and "RuntimeError: gone" in warnings[0]
    events, other, lines = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("events.jsonl", "other.jsonl", "telemetry.jsonl")
    )
    start, *_, end = events
    assert start["type"] == "run_start" and start["windows"] == 4
    assert start["manifest"] == json.loads((tmp_path / "run" / "manifest.json").read_text())
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [event for event in events if event["type"] in ("window", "evaluation")] == [
        {key: value for key, value in line.items() if key != "bottleneck"} for line in metrics
    ]
    assert (end["type"], end["reason"], end["windows"]) == ("run_end", "finished", 4)
    assert "window" not in [event["type"] for event in other]
    assert [line["type"] for line in lines] == ["run_start", "telemetry", "telemetry", "run_end"]
    assert lines[-1] == end

    listed = run_command("dflash-bench", "plugins", "list", cwd=tmp_path, env=env)
    assert "recorder  (one 1.0), for dflash train --observe\n    writes what it hears\n" in listed.out
    as_json = json.loads(run_command("dflash-bench", "plugins", "list", "--json", cwd=tmp_path, env=env).out)
    assert "recorder" in [one["name"] for one in as_json["observers"]]
