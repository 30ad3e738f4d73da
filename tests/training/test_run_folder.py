"""A run's folder: nobody else's meanwhile, and as it was at the checkpoint from which the run goes on."""

from __future__ import annotations

import json
import resource

import pytest

from dflash.config import load_config
from dflash.errors import DflashError, UsageError
from dflash.training import run_folder
from dflash.training.step import EvaluationResult


def lines(folder):
    return (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)


def evaluation(window):
    return EvaluationResult(window, 4.5, [None, 0.1])


def test_results_are_there_as_soon_as_they_are_told(tmp_path):
    with run_folder.taken(tmp_path / "a" / "run", 0, 0) as metrics:
        metrics.add(evaluation(0), "target")
        (line,) = lines(tmp_path / "a" / "run")
    assert json.loads(line) == {
        "type": "evaluation",
        "window": 0,
        "loss": 4.5,
        "accuracy_B": [None, 0.1],
        "bottleneck": "target",
    }


@pytest.mark.parametrize("torn", [b"", b'{"type": "ev'])
@pytest.mark.parametrize("results", [0, 1, 3, 7])
def test_what_came_later_is_cut_off(tmp_path, results, torn):
    with run_folder.taken(tmp_path, 0, 0) as metrics:
        for window in range(3):
            metrics.add(evaluation(window), "target")
    before = lines(tmp_path)
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(before) + torn)
    assert run_folder.lines_of_metrics(tmp_path) == 3
    with run_folder.taken(tmp_path, 0, results) as metrics:
        metrics.add(evaluation(9), "target")
    assert lines(tmp_path)[:-1] == before[:results] and b'"window": 9' in lines(tmp_path)[-1]


def test_one_process_at_a_time(tmp_path):
    again = run_folder.taken(tmp_path, 0, 0)
    with run_folder.taken(tmp_path, 0, 0), pytest.raises(UsageError, match="another process is training"):
        again.__enter__()
    with run_folder.taken(tmp_path, 0, 0):
        pass


def test_a_full_disk_is_an_error_of_one_line_and_no_result(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with run_folder.taken(tmp_path, 0, 0) as metrics:
        metrics.add(evaluation(0), "target")
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(lines(tmp_path)[0]) + 10, before[1]))
        try:
            with pytest.raises(DflashError, match=r"cannot write .*metrics.jsonl"):
                metrics.add(evaluation(1), "target")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert run_folder.lines_of_metrics(tmp_path) == 1


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot make the folder"), run_folder.taken(tmp_path / "file", 0, 0):
        pytest.fail("there is a file")


def test_what_holds_a_run_is_not_taken_for_a_new_one(tmp_path):
    folder = tmp_path / "run"
    with run_folder.taken(folder, 0, 0) as metrics:
        assert run_folder.new_folder(folder) == folder, "killed before there was anything"
        metrics.add(evaluation(0), "target")
    with pytest.raises(UsageError, match=f"--resume {folder}"):
        run_folder.new_folder(folder)


def test_paths_become_absolute_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = load_config(None, ("data.store=a.arrow", "training.init=b/drafter"))
    found = run_folder.with_absolute_paths(given)
    assert (found.data.store, found.data.target) == (f"{tmp_path}/a.arrow", "sample")
    assert found.training.init == f"{tmp_path}/b/drafter"
    monkeypatch.chdir("/")
    assert run_folder.with_absolute_paths(found) == found


def test_a_manifest_of_something_else_is_refused(tmp_path):
    assert run_folder.starts(tmp_path) == []
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(UsageError, match=r"manifest\.json is no manifest of a run"):
        run_folder.starts(tmp_path)
