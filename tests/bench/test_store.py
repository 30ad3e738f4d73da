from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ulid import ULID

from dflash.bench.exchange import WindowFigures
from dflash.bench.machine import describe
from dflash.bench.metrics import METRICS
from dflash.bench.results import Arm, Comparison, Data, Plugin, Revision, Run, Settings, Trial
from dflash.bench.store import find, load, new_run_id, open_directory, paths, rows, save
from dflash.bench.verdict import Verdict
from dflash.errors import DflashError, ExitCode, UsageError

figures = st.one_of(st.none(), st.floats(0, 1e15))
shares = st.dictionaries(st.sampled_from(["busy", "starved", "blocked"]), st.floats(0, 1))
tokens = st.integers(0, 2**40)
window_figures = st.builds(
    WindowFigures,
    seconds=st.floats(0, 1e6),
    real_tokens=tokens,
    padded_tokens=tokens,
    loss_tokens=tokens,
    loss=figures,
    gradient_norm=st.floats(0, 1e6),
)
good_trials = st.builds(
    Trial,
    pair=st.integers(0, 99),
    slot=st.integers(0, 1),
    arm=st.text(min_size=1, max_size=9),
    seed=st.integers(0, 2**63 - 1),
    status=st.just("ok"),
    metrics=st.fixed_dictionaries(
        {name: figures for name in METRICS if name != "tok_s"} | {"tok_s": st.floats(1e-9, 1e15)}
    ),
    losses=st.lists(figures, max_size=5).map(lambda losses: [0.0, *losses]),
    plan_digest=st.one_of(st.none(), st.text(max_size=9)),
    stages=st.dictionaries(st.sampled_from(["feed", "prefetch", "target"]), shares),
    bottleneck=st.one_of(st.none(), st.just("target")),
    steal_seconds=figures,
    load=figures,
    windows=st.lists(window_figures, max_size=3),
    steal_share=st.one_of(st.none(), st.floats(0, 1)),
    throttled=st.lists(st.text(max_size=5), max_size=2),
    notes=st.lists(st.text(max_size=5), max_size=2),
)
bad_trials = st.builds(
    Trial,
    pair=st.integers(0, 99),
    slot=st.integers(0, 1),
    arm=st.just("bucketed"),
    seed=st.integers(0, 9),
    status=st.just("failed"),
    error=st.text(max_size=30),
)


def a_run(trials: list[Trial], **changes: Any) -> Run:
    plugin = Plugin(distribution="dflash", version="0.1.0", file_hash="abc")
    run = Run(
        run_id=new_run_id(),
        verdict=Verdict.OK,
        exit_code=ExitCode.OK,
        reference="random",
        arms=[Arm(strategy="random", options={"pool": 10}, plugin=plugin, plan={"digest": "d"})],
        comparisons=[
            Comparison(strategy="sorted", reference="random", metric="tok_s", estimate=1.5, reason="so it is")
        ],
        settings=Settings(
            token_budget=64, accumulation=2, drafters=1, warmup_windows=1, windows=2, rounds=1, seed=0
        ),
        data=Data(name="sample", fingerprint="f00d", samples=3, tokens=99),
        machine=describe(),
        revision=Revision(commit="c0ffee", dirty=True),
        class_key="0123",
        command_line=["dflash-bench", "-s", "random"],
    )
    return msgspec.structs.replace(run, **changes)


def a_trial(pair: int = 0, **metrics: float | None) -> Trial:
    return Trial(
        pair=pair, slot=0, arm="random", seed=0, status="ok", metrics={"tok_s": 10.0, **metrics}, losses=[1.0]
    )


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trials=st.lists(st.one_of(good_trials, bad_trials), max_size=4, unique_by=lambda t: (t.pair, t.arm)))
def test_what_was_saved_comes_back(trials: list[Trial], tmp_path: Path) -> None:
    run = a_run(trials)
    again, back = load(save(run, trials, tmp_path))
    assert again == run
    complete = [
        msgspec.structs.replace(trial, metrics=dict.fromkeys(METRICS) | trial.metrics) for trial in trials
    ]
    assert back == complete


def test_a_file_for_each_table_is_named_for_the_run_and_nothing_else_is_left(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "runs"
    run = a_run([a_trial()])
    path = save(run, [a_trial()], directory)
    assert path == directory / "runs" / f"{run.run_id}.parquet"
    files = sorted(str(file.relative_to(directory)) for file in directory.rglob("*") if file.is_file())
    assert files == [f"{table}/{path.name}" for table in ("comparisons", "runs", "trials", "windows")]


def test_the_row_of_a_run_says_where_it_comes_from(tmp_path: Path) -> None:
    run = a_run([a_trial()])
    (row,) = pq.read_table(save(run, [a_trial()], tmp_path)).to_pylist()
    assert row["time"].timestamp() == pytest.approx(ULID.from_str(run.run_id).timestamp, abs=0.002)
    facts = ("revision", "dirty", "class_key", "plugins", "command_line", "exit_code")
    expected = ["c0ffee", True, "0123", ["dflash 0.1.0 abc"], run.command_line, 0]
    assert [row[fact] for fact in facts] == expected


def test_every_table_of_two_versions_of_a_run_reads_as_one_data_set(tmp_path: Path) -> None:
    """Explicit types: a column that is null throughout one run has the type that it has in the other."""
    window = WindowFigures(
        seconds=1.0, real_tokens=1, padded_tokens=2, loss_tokens=1, loss=None, gradient_norm=1.0
    )
    full = msgspec.structs.replace(a_trial(0, loss_tok_s=0.5), windows=[window], notes=["n"])
    save(a_run([full]), [full], tmp_path)
    save(a_run([], comparisons=[], revision=None), [], tmp_path)
    for table, count in (("runs", 2), ("trials", 1), ("windows", 1), ("comparisons", 1)):
        files = [pq.read_table(file) for file in (tmp_path / table).iterdir()]
        assert files[0].schema.equals(files[1].schema)
        assert pa.concat_tables(files).num_rows == count


def test_a_run_has_the_names_last_prefix_and_path(tmp_path: Path) -> None:
    runs = [a_run([], run_id=name) for name in ("01AAAA" + "0" * 20, "01AAAB" + "0" * 20)]
    old, new = [save(run, [], tmp_path) for run in runs]
    assert find("last", tmp_path) == new
    assert find("01aaaa", tmp_path) == find(runs[0].run_id, tmp_path) == old
    assert find(str(old), tmp_path) == old
    for name, words in (("01AA", "start of 2 runs"), ("01ZZ", "no run '01ZZ'"), ("nope", "no run")):
        with pytest.raises(UsageError, match=words):
            find(name, tmp_path)
    with pytest.raises(UsageError, match="no run is stored there"):
        find("last", tmp_path / "empty")


def version_1(directory: Path) -> tuple[Path, dict[str, Any]]:
    """A run as schema version 1 stored it: one file, a row per trial, the run's JSON in its metadata."""
    run = {
        "schema_version": 1,
        "run_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV",
        "verdict": "OK",
        "exit_code": 0,
        "reference": "random",
        "arms": [
            {
                "strategy": "random",
                "options": {},
                "plugin": {"distribution": "dflash", "version": "0.1.0", "file_hash": "abc"},
                "plan": {"digest": "d"},
                "metrics": {"tok_s": 10.0, "cpu_seconds": None},
                "intervals": {"tok_s": [9.0, 11.0]},
                "error": None,
            }
        ],
        "comparisons": [
            {
                "strategy": "sorted",
                "reference": "random",
                "metric": "tok_s",
                "estimate": 1.5,
                "low": None,
                "high": None,
                "pairs": 1,
                "verdict": None,
                "reason": "1 pair",
            }
        ],
        "settings": {
            "token_budget": 64,
            "accumulation": 2,
            "drafters": 1,
            "warmup_windows": 1,
            "windows": 2,
            "rounds": 1,
            "seed": 0,
            "level": 0.98,
            "floor": 0.02,
            "tolerance": 0.05,
            "trainer": {},
        },
        "data": {"name": "sample", "fingerprint": "f00d", "samples": 3, "tokens": 99},
        "machine": {
            "cpu": "cpu",
            "cores": 2,
            "cpu_quota": None,
            "memory_bytes": None,
            "gpus": [],
            "platform": "Linux x86_64",
            "python": "3.11.9",
            "versions": {},
            "threads": {},
        },
    }
    schema = pa.schema(
        [
            *((name, pa.int64()) for name in ("pair", "slot", "seed")),
            *((name, pa.string()) for name in ("arm", "status", "error", "plan_digest", "bottleneck")),
            *((name, pa.float64()) for name in ("tok_s", "cpu_seconds", "gone", "steal_seconds", "load")),
            ("losses", pa.list_(pa.float64())),
            ("stages", pa.map_(pa.string(), pa.map_(pa.string(), pa.float64()))),
        ],
        metadata={
            "dflash.schema_version": "1",
            "dflash.run": json.dumps(run),
            "dflash.metrics": json.dumps([{"name": "tok_s"}, {"name": "cpu_seconds"}, {"name": "gone"}]),
        },
    )
    row = {
        "pair": 0,
        "slot": 0,
        "arm": "random",
        "seed": 0,
        "status": "ok",
        "tok_s": 10.0,
        "gone": 1.0,
        "losses": [1.0, None],
        "stages": {"feed": {"busy": 0.5}},
        "plan_digest": "d",
    }
    path = directory / f"{run['run_id']}.parquet"
    pq.write_table(pa.Table.from_pylist([row], schema=schema), path, compression="zstd")
    return path, run


def test_a_run_of_schema_version_1_loads_and_is_found_among_the_new(tmp_path: Path) -> None:
    path, stored = version_1(tmp_path)
    run, (trial,) = load(path)
    assert run == msgspec.convert(stored, Run)
    assert (run.arms[0].metrics, run.comparisons[0].gate, run.looks) == (
        {"tok_s": 10.0, "cpu_seconds": None},
        None,
        [],
    )
    assert (trial.metrics, trial.losses) == ({"tok_s": 10.0, "cpu_seconds": None}, [1.0, None])
    assert trial.stages == {"feed": {"busy": 0.5}}
    save(a_run([]), [], tmp_path)
    assert find("01ARZ", tmp_path) == path
    assert [row["tok_s"] for row in rows(path, "trials")] == [10.0]


def trials_table(path: Path) -> pa.Table:
    return pq.read_table(path.parent.parent / "trials" / path.name)


def test_any_reader_sees_typed_columns_and_null_is_neither_zero_nor_nan(tmp_path: Path) -> None:
    trials = [a_trial(0, loss_tok_s=0.0), a_trial(1)]
    table = trials_table(save(a_run(trials), trials, tmp_path))
    assert table.column("loss_tok_s").to_pylist() == [0.0, None]
    assert table.column("peak_memory_bytes").null_count == 2
    assert {table.schema.field(name).type for name in METRICS} == {pa.float64()}
    assert table.schema.field("error").type == pa.string()
    empty = trials_table(save(a_run([]), [], tmp_path))
    assert empty.schema.equals(table.schema)
    definitions = msgspec.json.decode(table.schema.metadata[b"dflash.metrics"])
    assert definitions[0] == {
        "name": "tok_s",
        "unit": "tokens/s",
        "direction": "higher",
        "summary": "real tokens per second",
        "gate_rule": "paired",
        "tolerance": None,
    }


def test_run_ids_are_ulids_of_now_and_differ() -> None:
    before = time.time()
    ids = [new_run_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    for each in (ids[0], ids[-1]):
        assert before - 0.001 <= ULID.from_str(each).timestamp <= time.time()


def test_twenty_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    """Forked together, they wait for one pipe to close and write five runs each."""
    program = """
import os, sys
from pathlib import Path
import msgspec, pandas, pyarrow.parquet
from dflash.bench.results import Run, Trial
from dflash.bench.store import new_run_id, save

directory, run = Path(sys.argv[1]), msgspec.json.decode(sys.argv[2].encode(), type=Run)
read, write = os.pipe()
children = []
for worker in range(20):
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)
        for turn in range(5):
            fields = {"pair": turn, "slot": 0, "arm": "random", "seed": worker, "status": "ok"}
            trial = Trial(**fields, metrics={"tok_s": 1.0}, losses=[1.0])
            save(msgspec.structs.replace(run, run_id=new_run_id()), [trial], directory)
        os._exit(0)
    children.append(child)
os.close(write)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, "-c", program, str(tmp_path), a_run([]).to_json().decode()]
    subprocess.run(arguments, env=environment, check=True)
    loaded = [load(path) for path in paths(tmp_path)]
    assert {run.run_id for run, _ in loaded} == {path.stem for path in (tmp_path / "runs").iterdir()}
    assert not [file for file in tmp_path.rglob("*") if file.name.startswith(".")], (
        "no temporary file is left"
    )
    assert sorted((trial.seed, trial.pair) for _, trials in loaded for trial in trials) == [
        (worker, turn) for worker in range(20) for turn in range(5)
    ]


def refused(path: Path) -> str:
    with pytest.raises(UsageError) as raised:
        load(path)
    message = str(raised.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


def test_a_file_that_is_not_a_run_is_refused_in_one_line(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "none.parquet")
    text = tmp_path / "text.parquet"
    text.write_text("this is not a Parquet file at all")
    assert "not a Parquet file" in refused(text)
    empty = tmp_path / "empty.parquet"
    empty.touch()
    assert "not a Parquet file" in refused(empty)
    assert refused(tmp_path)
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"a": [1]}), other)
    assert "a Parquet file, but not a run" in refused(other)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.floats(0, 0.999))
def test_a_file_cut_short_anywhere_is_refused(cut: float, tmp_path: Path) -> None:
    whole = save(a_run([a_trial()]), [a_trial()], tmp_path)
    content = whole.read_bytes()
    short = whole.with_name("short.parquet")
    short.write_bytes(content[: int(cut * len(content))])
    refused(short)


def test_a_later_schema_and_a_run_that_makes_no_sense_are_refused(tmp_path: Path) -> None:
    path = save(a_run([a_trial()]), [a_trial()], tmp_path)
    table = pq.read_table(path)
    later = table.replace_schema_metadata(table.schema.metadata | {b"dflash.schema_version": b"3"})
    pq.write_table(later, path)
    assert "schema version 3, this dflash reads up to 2" in refused(path)
    broken = table.set_column(table.schema.get_field_index("document"), "document", [['{"run_id": 3}']])
    pq.write_table(broken, path)
    assert "does not make sense" in refused(path)


def test_columns_and_keys_that_a_later_version_added_are_passed_over(tmp_path: Path) -> None:
    run, trials = a_run([a_trial()]), [a_trial()]
    path = save(run, trials, tmp_path)
    table = pq.read_table(path)
    text = run.to_json().replace(b'{"schema_version"', b'{"extra":[1],"schema_version"', 1).decode()
    pq.write_table(table.set_column(table.schema.get_field_index("document"), "document", [[text]]), path)
    beside = path.parent.parent / "trials" / path.name
    pq.write_table(pq.read_table(beside).append_column("gpu_clock", pa.array([1.0])), beside)
    again, back = load(path)
    assert (again, back[0].metrics["tok_s"]) == (run, 10.0)


def test_a_directory_that_cannot_hold_runs_is_refused_before_anything_runs(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for directory in (file, file / "below"):
        with pytest.raises(UsageError, match=r"cannot store runs there .*; name another directory"):
            open_directory(directory)
    assert open_directory(tmp_path / "new").is_dir()


def test_a_write_that_fails_leaves_no_run_behind(tmp_path: Path) -> None:
    run = a_run([a_trial()])
    obstacle = tmp_path / "trials" / f"{run.run_id}.parquet"
    obstacle.mkdir(parents=True)
    with pytest.raises(DflashError, match="cannot write the run"):
        save(run, [a_trial()], tmp_path)
    assert paths(tmp_path) == [] and not list((tmp_path / "trials").glob(".*"))


def test_costly_libraries_are_imported_when_they_are_used() -> None:
    program = """
import sys
import dflash.bench.report, dflash.bench.store
print(sorted({"pandas", "pyarrow", "scipy", "torch", "numba"} & sys.modules.keys()))
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
