"""The token store: what was written is read back, in any order, and a damaged file is refused."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.data import store as store_module
from dflash.data.store import StoreSample, TokenStore, write_store
from dflash.errors import UsageError

SAMPLES = st.lists(
    st.integers(1, 40).flatmap(
        lambda n: st.builds(
            StoreSample,
            st.lists(st.integers(0, 2**31 - 1), min_size=n, max_size=n),
            st.lists(st.integers(0, 1), min_size=n, max_size=n),
            st.text(max_size=5),
            st.booleans(),
        )
    ),
    max_size=30,
)


def random_samples(count: int, seed: int, longest: int = 50) -> list[StoreSample]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest + 1, count)
    return [
        StoreSample(rng.integers(0, 1000, n), rng.integers(0, 2, n), f"s{i}", bool(rng.integers(2)))
        for i, n in enumerate(lengths)
    ]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_TOKENS_PER_CHUNK", 64)


@settings(max_examples=60, deadline=None)
@given(samples=SAMPLES, chunk=st.sampled_from([1, 50, 10**6]), data=st.data())
def test_rows_read_back_equal_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, samples: list[StoreSample], chunk: int, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("store") / "s.arrow"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "_TOKENS_PER_CHUNK", chunk)
        fingerprint = write_store(path, samples, {"pad_id": 7, "note": ["é"]})
    store = TokenStore.open(path)
    store.verify()
    assert (store.fingerprint, store.metadata, store.pad_id) == (fingerprint, {"pad_id": 7, "note": ["é"]}, 7)
    assert len(store) == len(samples)
    assert store.lengths.tolist() == [len(s.input_ids) for s in samples]  # type: ignore[arg-type]
    anchors = [
        sum(s.loss_mask[a] == 1 == s.loss_mask[a + 1] for a in range(len(s.loss_mask) - 1))  # type: ignore
        for s in samples
    ]
    assert store.valid_anchors.tolist() == anchors
    assert store.rows().tolist() == [i for i, s in enumerate(samples) if not s.held_out]
    assert store.rows(held_out=True).tolist() == [i for i, s in enumerate(samples) if s.held_out]
    for row in data.draw(st.permutations(range(len(samples)))):
        assert store.tokens(row).tolist() == samples[row].input_ids
        assert store.loss_mask(np.int64(row)).tolist() == samples[row].loss_mask
        assert store.name(row) == samples[row].name


def test_types_and_views(tmp_path: Path, small_chunks: None) -> None:
    write_store(tmp_path / "s", random_samples(50, 0), {})
    store = TokenStore.open(tmp_path / "s")
    assert {str(a.dtype) for a in (store.lengths, store.valid_anchors, store.rows())} == {"int64"}
    ids, mask = store.tokens(30), store.loss_mask(30)
    assert (str(ids.dtype), str(mask.dtype)) == ("int32", "uint8")
    assert ids.base is not None
    assert not ids.flags.writeable
    assert np.shares_memory(ids, store.tokens(30))


def test_any_arrow_reader_sees_the_columns(tmp_path: Path, small_chunks: None) -> None:
    samples = random_samples(20, 1)
    write_store(tmp_path / "s", samples, {})
    table = pa.ipc.open_file(pa.memory_map(str(tmp_path / "s"))).read_all()
    assert [f"{field.name}: {field.type}" for field in table.schema] == [
        "input_ids: list<item: int32>",
        "loss_mask: list<item: uint8>",
        "length: int64",
        "valid_anchors: int64",
        "held_out: bool",
        "name: string",
    ]
    assert table["input_ids"].to_pylist() == [list(s.input_ids) for s in samples]  # type: ignore[arg-type]


def test_fingerprint_depends_on_content_and_order_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = random_samples(10, 2)
    base = write_store(tmp_path / "a", samples, {"note": 1})
    monkeypatch.setattr(store_module, "_TOKENS_PER_CHUNK", 8)
    assert write_store(tmp_path / "b", samples, {"note": 2}) == base
    flipped = samples[0]._replace(held_out=not samples[0].held_out)
    renamed = samples[0]._replace(name="other")
    masked = samples[0]._replace(loss_mask=1 - np.asarray(samples[0].loss_mask))
    changed = [write_store(tmp_path / "c", [first, *samples[1:]], {}) for first in (flipped, renamed, masked)]
    others = [*changed, write_store(tmp_path / "c", samples[::-1], {}), write_store(tmp_path / "c", [], {})]
    assert len({base, *others}) == 6


def test_metadata_is_read_after_the_last_sample(tmp_path: Path) -> None:
    metadata: dict[str, Any] = {}

    def draw() -> Any:
        yield from random_samples(3, 3)
        metadata["left_out"] = 5

    write_store(tmp_path / "s", draw(), metadata)
    assert TokenStore.open(tmp_path / "s").metadata == {"left_out": 5}


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="resident pages of a mapping: Linux only")
def test_opening_and_lengths_touch_no_tokens(tmp_path: Path) -> None:
    path = tmp_path / "big.arrow"
    ids, mask = np.arange(100_000), np.ones(100_000, np.uint8)
    write_store(path, (StoreSample(ids, mask, str(i)) for i in range(200)), {})
    assert path.stat().st_size > 90e6
    store = TokenStore.open(path)
    assert store.lengths.sum() == 200 * 100_000
    assert store.valid_anchors.sum() == 200 * 99_999
    assert resident_bytes(path) < 0.1 * path.stat().st_size
    assert (
        sum(int(store.tokens(row)[-1]) + int(store.tokens(row).sum() > 0) for row in range(200))
        == 200 * 10**5
    )
    assert resident_bytes(path) > 0.7 * path.stat().st_size  # the measure sees pages that are touched


def resident_bytes(path: Path) -> int:
    resident, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0] and not line.split()[0].endswith(":"):
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            resident += int(line.split()[1]) * 1024
    return resident


@pytest.mark.parametrize("row", [-1, 5, 10**12])
def test_row_outside_the_store(tmp_path: Path, row: int) -> None:
    write_store(tmp_path / "s", random_samples(5, 4), {})
    with pytest.raises(IndexError, match=r"rows 0 to 4"):
        TokenStore.open(tmp_path / "s").tokens(row)


def test_float_row_is_refused(tmp_path: Path) -> None:
    write_store(tmp_path / "s", random_samples(5, 4), {})
    with pytest.raises(TypeError):
        TokenStore.open(tmp_path / "s").tokens(1.7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (StoreSample([], [], "x"), "give at least one integer"),
        (StoreSample([1.5], [1], "x"), "give at least one integer"),
        (StoreSample([[1]], [[1]], "x"), "give at least one integer"),
        (StoreSample([1, 2], [1], "x"), "one 0 or 1 for each of its 2 tokens"),
        (StoreSample([1], [2], "x"), "one 0 or 1 for each of its 1 tokens"),
        (StoreSample([1], [0.5], "x"), "one 0 or 1 for each of its 1 tokens"),
        (StoreSample([-1], [1], "x"), "must be in 0"),
        (StoreSample([2**31], [1], "x"), "must be in 0"),
    ],
)
def test_a_wrong_sample_is_named_and_nothing_is_left(
    tmp_path: Path, sample: StoreSample, message: str
) -> None:
    with pytest.raises(UsageError, match=rf"sample 'x' \(row 2\).*{message}"):
        write_store(tmp_path / "s", [*random_samples(2, 5), sample], {})
    assert list(tmp_path.iterdir()) == []


def refused(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        TokenStore.open(path).verify()
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    assert "prepare" in message
    return message


def test_missing_store(tmp_path: Path) -> None:
    assert "no such token store" in refused(tmp_path / "none.arrow")


@settings(max_examples=40, deadline=None)
@given(share=st.floats(0, 1, exclude_max=True))
def test_truncated_anywhere(tmp_path_factory: pytest.TempPathFactory, share: float) -> None:
    path = tmp_path_factory.mktemp("store") / "s.arrow"
    write_store(path, random_samples(30, 6), {"note": "x"})
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    refused(path)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_a_changed_byte_is_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Padding between buffers carries nothing; any other byte is noticed by ``open`` or by ``verify``."""
    path = tmp_path_factory.mktemp("store") / "s.arrow"
    write_store(path, random_samples(30, 7), {})
    whole = [TokenStore.open(path).lengths, TokenStore.open(path).valid_anchors, TokenStore.open(path).rows()]
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        store = TokenStore.open(path)
        store.verify()
    except UsageError as error:
        assert str(path) in str(error)
    else:
        for column, original in zip([store.lengths, store.valid_anchors, store.rows()], whole, strict=True):
            assert column.tolist() == original.tolist()


def test_other_arrow_files(tmp_path: Path) -> None:
    path = tmp_path / "t.arrow"
    table = pa.table({"text": ["a"]})
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    assert "its columns are" in refused(path)
    write_store(path, random_samples(3, 8), {})
    whole = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    unsealed = tmp_path / "unsealed.arrow"
    with pa.ipc.new_file(str(unsealed), whole.schema) as writer:
        writer.write_table(whole)
    assert "its writer never finished" in refused(unsealed)
    path.write_bytes(b"")
    refused(path)


def test_lengths_that_contradict_the_tokens(tmp_path: Path) -> None:
    path = tmp_path / "s.arrow"
    write_store(path, random_samples(3, 9), {})
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    (batch, _), (end, seal) = (reader.get_batch_with_custom_metadata(i) for i in range(2))
    wrong = batch.set_column(2, "length", pa.array(batch["length"].to_numpy() + 1))
    copy = tmp_path / "copy.arrow"
    with pa.ipc.new_file(str(copy), reader.schema) as writer:
        writer.write_batch(wrong)
        writer.write_batch(end, custom_metadata=seal)
    assert "lengths contradict its tokens" in refused(copy)


def test_directory_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing.s.arrow: cannot write a token store .*give a path"):
        write_store(tmp_path / "missing" / "s.arrow", random_samples(2, 0), {})


def test_concurrent_writers_leave_one_whole_store(tmp_path: Path) -> None:
    path = tmp_path / "s.arrow"
    contents = [random_samples(200, seed) for seed in range(6)]
    fingerprints: list[str] = []

    def write(samples: list[StoreSample]) -> None:
        fingerprints.extend(write_store(path, samples, {}) for _ in range(5))

    threads = [threading.Thread(target=write, args=(samples,)) for samples in contents]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if path.exists():
            TokenStore.open(path).verify()
    for thread in threads:
        thread.join()
    assert len(fingerprints) == 30
    TokenStore.open(path).verify()
    assert TokenStore.open(path).fingerprint in fingerprints
    assert list(tmp_path.iterdir()) == [path]


KILLED_WRITER = """
import os, signal, sys
from dflash.data.store import StoreSample, write_store

def samples():
    yield StoreSample([1, 2], [1, 1], "first")
    os.kill(os.getpid(), signal.SIGKILL)

write_store(sys.argv[1], samples(), {})
"""


def test_a_killed_writer_leaves_the_old_store_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    path = tmp_path / "s.arrow"
    fingerprint = write_store(path, random_samples(3, 10), {})
    killed = subprocess.run([sys.executable, "-c", KILLED_WRITER, str(path)], check=False)
    assert killed.returncode == -9
    assert len(list(tmp_path.iterdir())) == 2
    assert TokenStore.open(path).fingerprint == fingerprint
    write_store(path, random_samples(4, 11), {})
    assert list(tmp_path.iterdir()) == [path]
    assert len(TokenStore.open(path)) == 4


def test_import_of_the_store_does_not_import_pyarrow() -> None:
    modules = "dflash.data.store, dflash.data.sample, dflash.data.collate"
    program = f"import sys, {modules}; print('pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"
