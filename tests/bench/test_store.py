from __future__ import annotations

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

from dflash.bench.machine import describe
from dflash.bench.metrics import METRICS
from dflash.bench.results import Arm, Data, Plugin, Run, Settings, Trial, assemble
from dflash.bench.store import load, new_run_id, open_directory, save
from dflash.errors import DflashError, UsageError

figures = st.one_of(st.none(), st.floats(0, 1e15))
shares = st.dictionaries(st.sampled_from(["busy", "starved", "blocked"]), st.floats(0, 1))
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
    run = assemble(
        new_run_id(),
        "random",
        [Arm(strategy="random", options={"pool": 10}, plugin=plugin, plan={"digest": "d"})],
        trials,
        Settings(token_budget=64, accumulation=2, drafters=1, warmup_windows=1, windows=2, rounds=1, seed=0),
        Data(name="sample", fingerprint="f00d", samples=3, tokens=99),
        describe(),
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


def test_the_file_is_named_for_the_run_and_nothing_else_is_left(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "runs"
    run = a_run([a_trial()])
    path = save(run, [a_trial()], directory)
    assert path == directory / f"{run.run_id}.parquet"
    assert os.listdir(directory) == [path.name]


def test_any_reader_sees_typed_columns_and_null_is_neither_zero_nor_nan(tmp_path: Path) -> None:
    trials = [a_trial(0, loss_tok_s=0.0), a_trial(1)]
    table = pq.read_table(save(a_run(trials), trials, tmp_path))
    assert table.column("loss_tok_s").to_pylist() == [0.0, None]
    assert table.column("peak_memory_bytes").null_count == 2
    assert {table.schema.field(name).type for name in METRICS} == {pa.float64()}
    assert table.schema.field("error").type == pa.string()
    empty = pq.read_table(save(a_run([]), [], tmp_path))
    assert empty.schema.equals(table.schema)
    definitions = msgspec.json.decode(table.schema.metadata[b"dflash.metrics"])
    assert definitions[0] == {
        "name": "tok_s",
        "unit": "tokens/s",
        "direction": "higher",
        "summary": "real tokens per second",
        "gate_rule": "paired",
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
    loaded = [load(path) for path in tmp_path.iterdir()]
    assert {run.run_id for run, _ in loaded} == {path.stem for path in tmp_path.iterdir()}
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
    short = tmp_path / "short.parquet"
    short.write_bytes(content[: int(cut * len(content))])
    refused(short)


def rewritten(path: Path, **metadata: bytes) -> Path:
    table = pq.read_table(path)
    changed = table.schema.metadata | {f"dflash.{key}".encode(): value for key, value in metadata.items()}
    pq.write_table(table.replace_schema_metadata(changed), path)
    return path


def test_a_later_schema_and_a_run_that_makes_no_sense_are_refused(tmp_path: Path) -> None:
    path = save(a_run([a_trial()]), [a_trial()], tmp_path)
    assert "schema version 2, this dflash reads up to 1" in refused(rewritten(path, schema_version=b"2"))
    rewritten(path, schema_version=b"1", run=b'{"run_id": 3}')
    assert "does not make sense" in refused(path)


def test_columns_and_keys_that_a_later_version_added_are_passed_over(tmp_path: Path) -> None:
    run, trials = a_run([a_trial()]), [a_trial()]
    path = save(run, trials, tmp_path)
    table = pq.read_table(path).append_column("gpu_clock", pa.array([1.0]))
    pq.write_table(table, path)
    rewritten(path, run=run.to_json().replace(b'{"schema_version"', b'{"extra":[1],"schema_version"', 1))
    again, back = load(path)
    assert (again, back[0].metrics["tok_s"]) == (run, 10.0)


def test_a_directory_that_cannot_hold_runs_is_refused_before_anything_runs(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for directory in (file, file / "below"):
        with pytest.raises(UsageError, match=r"cannot store runs there .*; name another directory"):
            open_directory(directory)
    assert open_directory(tmp_path / "new").is_dir()


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    run = a_run([a_trial()])
    obstacle = tmp_path / f"{run.run_id}.parquet"
    obstacle.mkdir()
    with pytest.raises(DflashError, match="cannot write the run"):
        save(run, [a_trial()], tmp_path)
    assert list(tmp_path.iterdir()) == [obstacle]


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
