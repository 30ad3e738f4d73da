"""Every kind of input gives the rows that were put in, and a bad one is named."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.data.documents import Bad, Chat, Fields, Pair, Text, Tokens
from dflash.data.inputs import open_inputs, read_rows
from dflash.data.store import StoreSample, write_store
from dflash.errors import UsageError


def rows(*inputs, limit=None):
    found = list(read_rows(open_inputs(map(str, inputs), Fields()), limit))
    shares = [share for _, share in found]
    assert shares == sorted(shares)
    assert not shares or 0 < shares[-1] <= 1 + 1e-9
    assert [row.number for row, _ in found] == list(range(len(found)))
    return [row for row, _ in found]


def write_jsonl(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def write_shard(path, table):
    """As Hugging Face's library writes its shards: the stream format."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    return path


TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip), min_size=1)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system"]), "content": st.text(max_size=5)}
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=30)
@given(texts=TEXTS)
def test_text_is_the_same_from_every_kind_of_file(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("inputs")
    table = pa.table({"id": list(range(len(texts))), "text": texts})
    files = [write_jsonl(folder / "a.jsonl", table.to_pylist()), write_shard(folder / "b.arrow", table)]
    pq.write_table(table, folder / "c.parquet")
    with pa.OSFile(str(folder / "d.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    for file in (*files, folder / "c.parquet", folder / "d.arrow"):
        found = rows(file)
        assert [row.content for row in found] == [Text(text) for text in texts]
        assert [row.name for row in found] == [f"{file.name}:{i + 1}" for i in range(len(texts))]
        assert [row.where for row in found] == [f"{file}:{i + 1}" for i in range(len(texts))]


@settings(max_examples=20)
@given(chats=st.lists(MESSAGES, min_size=1, max_size=5))
def test_chats_are_the_same_from_lines_and_columns(tmp_path_factory, chats):
    folder = tmp_path_factory.mktemp("inputs")
    records = [{"messages": chat, "source": "x"} for chat in chats]
    pq.write_table(pa.Table.from_pylist(records), folder / "c.parquet")
    for file in (write_jsonl(folder / "a.jsonl", records), folder / "c.parquet"):
        assert [row.content for row in rows(file)] == [Chat(chat) for chat in chats]


def test_a_saved_data_set_is_read_as_its_state_says(tmp_path):
    """The layout of Hugging Face's save_to_disk; one shard is not the data set's."""
    for number in range(3):
        write_shard(tmp_path / f"data-{number}.arrow", pa.table({"text": [f"{number}a", f"{number}b"]}))
    (tmp_path / "dataset_info.json").write_text("{}")
    files = [{"filename": "data-2.arrow"}, {"filename": "data-0.arrow"}]
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": files, "_split": "train"}))
    found = rows(tmp_path)
    assert [row.content.text for row in found] == ["2a", "2b", "0a", "0b"]
    assert found[2].name == f"{tmp_path.name}/data-0.arrow:1"


def test_splits_are_never_mixed(tmp_path):
    (tmp_path / "dict" / "train").mkdir(parents=True)
    (tmp_path / "dict" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(UsageError, match=r"several splits: name one of .*dict/train"):
        rows(tmp_path / "dict")
    clone = tmp_path / "clone" / "data"
    clone.mkdir(parents=True)
    for split in ("train-00000-of-00001", "test-00000-of-00001"):
        pq.write_table(pa.table({"text": [split]}), clone / f"{split}.parquet")
    with pytest.raises(UsageError, match="splits test, train"):
        rows(clone.parent)
    (clone / "test-00000-of-00001.parquet").unlink()
    (clone.parent / "README.md").write_text("a card")
    (clone.parent / ".git").mkdir()
    (clone.parent / ".git" / "x.jsonl").write_text("hidden")
    found = rows(clone.parent)
    assert [row.name for row in found] == ["clone/data/train-00000-of-00001.parquet:1"]


def test_a_folder_of_texts_is_a_document_for_each(tmp_path):
    for name, text in [("b.txt", "two\nlines\n"), ("a.txt", "\ufeffbom"), ("train-test.txt", "é")]:
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert [row.content for row in rows(tmp_path)] == [Text("bom"), Text("two\nlines\n"), Text("é")]


def test_a_token_store_and_a_limit(tmp_path):
    samples = [StoreSample([1, 2, i], [0, 1, 1], f"s{i}", i % 2 == 0) for i in range(5)]
    write_store(tmp_path / "s.arrow", samples, {})
    write_jsonl(tmp_path / "t.jsonl", [{"text": "x"}] * 4)
    found = rows(tmp_path / "s.arrow", tmp_path / "t.jsonl", limit=7)
    assert len(found) == 7
    assert [row.name for row in found] == ["s0", "s1", "s2", "s3", "s4", "t.jsonl:1", "t.jsonl:2"]
    for i, row in enumerate(found[:5]):
        assert isinstance(row.content, Tokens)
        assert np.frombuffer(row.content.input_ids, np.int32).tolist() == [1, 2, i]
        assert list(row.content.loss_mask) == [0, 1, 1]
        assert row.content.held_out == (i % 2 == 0)


def test_lines_are_counted_as_an_editor_counts_them(tmp_path):
    """Blank lines and a byte order mark are no rows, odd line separators do not end a line."""
    file = tmp_path / "x.jsonl"
    file.write_bytes(
        b"\xef\xbb\xbf"
        + '{"text": "a"}\r\n\n{"text": "b\u2028\u0085c", "n": NaN}\n   \n{"text": "d"}'.encode()
    )
    found = rows(file)
    assert [row.name for row in found] == ["x.jsonl:1", "x.jsonl:3", "x.jsonl:5"]
    assert found[1].content == Text("b\u2028\u0085c")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"text": "b', "not JSON (Unterminated string"),
        (b"plain words", "not JSON"),
        (b'{"text": "\xff"}', "not UTF-8 (byte 11 of the line)"),
        (b'["b"]', '["b"] is no object with fields'),
        (b"[" * 100_000, "not JSON that can be read"),
        (b'{"text": ' + b"9" * 5000 + b"}", "not JSON that can be read"),
        (b'{"body": "b"}', "no field 'text'; there are body"),
    ],
)
def test_a_bad_line_is_a_row_with_its_number(tmp_path, line, problem):
    good = b'{"text": "a"}\n'
    for lines, number in [(good * 2 + line + b"\n" + good, 3), (good + line, 2)]:
        (tmp_path / "x.jsonl").write_bytes(lines)
        found = rows(tmp_path / "x.jsonl")
        bad = [row for row in found if isinstance(row.content, Bad)]
        assert [row.where for row in bad] == [f"{tmp_path / 'x.jsonl'}:{number}"]
        assert problem in bad[0].content.problem
        assert len(found) == lines.count(good) + 1


def test_the_fields_are_those_of_the_first_line_that_can_be_read(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"te\n{"prompt": "p", "response": "r"}\n')
    broken, pair = rows(tmp_path / "x.jsonl")
    assert isinstance(broken.content, Bad)
    assert pair.content == Pair("p", "r")


def test_a_text_that_is_not_utf_8_names_the_line(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"one\ntwo\ncaf\xe9\n")
    (row,) = rows(tmp_path / "x.txt")
    assert row.where.endswith("x.txt:3")
    assert row.content == Bad("not UTF-8")


def write(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.jsonl", b"", "empty"),
        ("x.jsonl", b"\n \n", "empty"),
        ("x.txt", b"", "empty"),
        ("x.jsonl", b'{"te', r"x\.jsonl:1: not JSON"),
        ("x.jsonl", b'\n{"body": "x"}', r"x\.jsonl:2: no field messages.* there are body"),
        ("x.csv", b"text\na\n", r"unknown kind of file; known are \.parquet, \.arrow, \.jsonl, \.txt"),
        ("x", b"text", "unknown kind of file"),
        ("x.jsonl.gz", b"\x1f\x8b", "unknown kind of file"),
        ("x.parquet", b"PAR1 and no more", "not a whole Parquet file"),
        ("x.arrow", b"ARROW1\0\0 and no more", "not a whole Arrow file"),
        ("x.arrow", b"nothing of that kind", "not a whole Arrow file"),
    ],
)
def test_a_file_that_cannot_be_an_input(tmp_path, name, content, words):
    with pytest.raises(UsageError, match=words) as caught:
        rows(write(tmp_path, name, content))
    assert "\n" not in str(caught.value)


def test_what_is_not_there(tmp_path):
    with pytest.raises(UsageError, match=r"none\.jsonl: no such file"):
        rows(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match=r"no .* file in this folder"):
        rows(tmp_path)
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "none.parquet")
    with pytest.raises(UsageError, match="empty"):
        rows(tmp_path / "none.parquet")
    write_jsonl(tmp_path / "x.jsonl", [{"text": "a"}])
    with pytest.raises(UsageError, match=r"holds none\.parquet and x\.jsonl"):
        rows(tmp_path)
    (tmp_path / "none.parquet").unlink()
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "gone.arrow"}]}')
    with pytest.raises(UsageError, match=r"gone\.arrow: cannot be read"):
        rows(tmp_path)
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(UsageError, match=r"state\.json is not that of a saved data set"):
        rows(tmp_path)


def test_a_shard_that_ends_early(tmp_path):
    table = pa.table({"text": [f"document {i}" * 50 for i in range(60)]})
    path = write_shard(tmp_path / "s.arrow", table)
    write(tmp_path, "s.arrow", path.read_bytes()[:10_000])
    with pytest.raises(UsageError, match="not a whole Arrow file"):
        rows(path)


def test_columns_of_another_type(tmp_path):
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "x.parquet")
    assert {row.content.problem for row in rows(tmp_path / "x.parquet")} == {
        "its 'text' is a number, not text"
    }
