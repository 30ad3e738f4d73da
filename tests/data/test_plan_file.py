from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.batching.plan import BatchPlan, PlanRequest, Reason, ledger
from dflash.batching.planning import make_plan
from dflash.data.plan_file import load_plan, save_plan
from dflash.errors import UsageError
from dflash_plugins.random import Random
from dflash_plugins.sorted import Sorted

NAMES = ("samples", "batch_offsets", "window_offsets", "ids", "ledger")


@pytest.fixture
def plan() -> BatchPlan:
    request = PlanRequest(100, 0, 0, 5, 5, "drop")
    lengths = np.random.default_rng(0).integers(1, 130, 200)
    return make_plan(Random(), lengths, request, ids=np.arange(200) * 3, overlong="truncate")[0]


def same(a: BatchPlan, b: BatchPlan) -> bool:
    return a.layout == b.layout and all(np.array_equal(getattr(a, name), getattr(b, name)) for name in NAMES)


def test_a_plan_comes_back_whole(plan: BatchPlan, tmp_path: Path) -> None:
    assert {Reason.CUT, Reason.TAIL} == set(plan.ledger["reason"].tolist())
    for one in (plan, replace(plan, layout="packed"), replace(plan, ledger=plan.ledger[:0])):
        save_plan(tmp_path / "plan.arrow", one)  # over the last one
        loaded = load_plan(str(tmp_path / "plan.arrow"))
        assert same(loaded, one)
        assert loaded.digest() == one.digest()
        assert loaded.samples.dtype == np.int64
        assert not loaded.samples.flags.writeable
    assert [path.name for path in tmp_path.iterdir()] == ["plan.arrow"]


@given(lengths=st.lists(st.integers(1, 100), max_size=30), tail=st.sampled_from(["spread", "pad", "drop"]))
def test_any_plan(lengths: list[int], tail: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.arrow"
    array = np.array(lengths, dtype=np.int64)
    plan, _ = make_plan(Sorted(), array, PlanRequest(100, 0, 0, 2, 2, tail))
    save_plan(path, plan)
    assert same(load_plan(path), plan)


def test_any_arrow_reader_can_read_it(plan: BatchPlan, tmp_path: Path) -> None:
    save_plan(tmp_path / "plan.arrow", plan)
    table = pa.ipc.open_file(str(tmp_path / "plan.arrow")).read_all()
    assert table.num_rows == 1
    assert table["samples"][0].as_py() == plan.samples.tolist()
    assert table["ledger_tokens"][0].as_py() == plan.ledger["tokens"].tolist()
    assert table.schema.metadata[b"digest"].decode() == plan.digest()


def refused(path: Path) -> str:
    with pytest.raises(UsageError) as raised:
        load_plan(path)
    message = str(raised.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_a_file_cut_short_anywhere(plan: BatchPlan, tmp_path: Path) -> None:
    save_plan(tmp_path / "whole", plan)
    whole = (tmp_path / "whole").read_bytes()
    for size in [*range(0, len(whole), 211), len(whole) - 1]:
        (tmp_path / "cut").write_bytes(whole[:size])
        assert "is not a whole plan file" in refused(tmp_path / "cut")


def test_a_damaged_file_never_gives_another_plan(plan: BatchPlan, tmp_path: Path) -> None:
    save_plan(tmp_path / "whole", plan)
    whole = (tmp_path / "whole").read_bytes()
    messages = []
    for place in range(0, len(whole), 29):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        (tmp_path / "damaged").write_bytes(damaged)
        try:
            assert same(load_plan(tmp_path / "damaged"), plan)  # the damage is in what nobody reads
        except UsageError as error:
            messages.append(str(error))
    assert sum("its arrays do not give its digest" in message for message in messages) > len(messages) / 3


def test_what_is_no_plan(plan: BatchPlan, tmp_path: Path) -> None:
    assert "cannot read the plan" in refused(tmp_path / "missing")
    assert "cannot read the plan" in refused(tmp_path)
    (tmp_path / "text").write_text("samples: " + "1, 2, 3, " * 9)
    assert "Not an Arrow file" in refused(tmp_path / "text")
    table = pa.table({"samples": [1, 2]})
    with pa.ipc.new_file(str(tmp_path / "table"), table.schema) as writer:
        writer.write_table(table)
    assert "its format is not 'dflash plan 1'" in refused(tmp_path / "table")
    save_plan(tmp_path / "plan", plan)
    reader = pa.ipc.open_file(str(tmp_path / "plan"))
    with pa.ipc.new_file(str(tmp_path / "twice"), reader.schema) as writer:
        writer.write(reader.get_batch(0))
        writer.write(reader.get_batch(0))
    assert "2 plans instead of one" in refused(tmp_path / "twice")
    without = reader.schema.with_metadata({"format": "dflash plan 1"})
    with pa.ipc.new_file(str(tmp_path / "facts"), without) as writer:
        writer.write(reader.read_all().replace_schema_metadata(without.metadata).to_batches()[0])
    assert "layout=''" in refused(tmp_path / "facts")


def test_where_no_plan_can_be_written(plan: BatchPlan, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot write the plan .*: No such file or directory"):
        save_plan(tmp_path / "no folder" / "plan", plan)


def test_ids_and_tokens_beyond_32_bits(tmp_path: Path) -> None:
    plan, _ = make_plan(Random(), [5], PlanRequest(5, 0, 0, 1, 1, "spread"), ids=[2**62])
    plan = replace(plan, ledger=ledger(np.array([2**62]), 2**40, Reason.CUT))
    save_plan(tmp_path / "plan", plan)
    assert same(load_plan(tmp_path / "plan"), plan)
