from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.bench.lengths_file import read_lengths
from dflash.errors import UsageError


def write(path, content):
    """By the suffix: an array as .npy, columns as .parquet, anything else as it is."""
    if isinstance(content, bytes | str):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    elif path.suffix == ".npy":
        np.save(path, content)
    else:
        pq.write_table(pa.table(content), path)
    return path


@given(st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=20))
def test_the_three_kinds_give_the_same(tmp_path_factory, lengths):
    folder = tmp_path_factory.mktemp("lengths")
    files = [
        write(folder / "a.npy", np.array(lengths)),
        write(folder / "b.npy", np.array(lengths, np.uint32)),
        write(folder / "c.npy", np.array(lengths, float)),
        write(folder / "a.parquet", {"tokens": lengths}),
        write(folder / "b.parquet", {"id": list(range(len(lengths))), "Length": lengths}),
        write(folder / "c.parquet", {"text": ["?"] * len(lengths), "n": pa.array(lengths, pa.uint32())}),
        write(folder / "a.csv", "".join(f"{length}\n" for length in lengths)),
        write(folder / "b.CSV", "\ufefftokens\r\n" + "\r\n".join(map(str, lengths))),
        write(folder / "c.csv", "name,lengths\n" + "".join(f'"a,b", {n}\n' for n in lengths)),
    ]
    for file in files:
        read = read_lengths(file)
        assert read.dtype == np.int64
        assert read.tolist() == lengths, file.name


def empty_cell(length):
    return pa.array([5, None, length], pa.int64())


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.npy", np.array([5, 0, -3]), "row 1 is 0, expected a whole number from 1 .*, and 1 more rows"),
        ("a.npy", np.array([5.0, np.nan]), "row 1 is nan"),
        ("a.npy", np.array([5, 7.5]), "row 1 is 7.5"),
        ("a.npy", np.array([np.inf]), "row 0 is inf"),
        ("a.npy", np.array([2**31]), "row 0 is 2147483648"),
        ("a.npy", np.array([2**63], np.uint64), "row 0 is 9223372036854775808"),
        ("a.npy", np.empty(0, np.int64), "it is empty"),
        ("a.npy", np.ones((2, 2), np.int64), "one array of one dimension"),
        ("a.npy", np.int64(3), "one array of one dimension"),
        ("a.npy", np.array(["5"]), "expected whole numbers, got <U1"),
        ("a.npy", np.array([True]), "expected whole numbers, got bool"),
        ("a.npy", b"", "cannot take lengths"),
        ("a.npy", b"not an array", "cannot take lengths"),
        ("a.parquet", b"not a table", "cannot take lengths"),
        ("a.parquet", b"", "cannot take lengths"),
        ("a.parquet", {"length": empty_cell(2)}, "row 1 is nan"),
        ("a.parquet", {"length": [1.5]}, "row 0 is 1.5"),
        ("a.parquet", {"length": ["5"]}, "expected whole numbers, got object"),
        ("a.parquet", {"length": pa.array([], pa.int64())}, "it is empty"),
        (
            "a.parquet",
            {"a": [1], "b": [2]},
            "expected one column of integers, or one called length, among a, b",
        ),
        ("a.parquet", {"length": [1], "Lengths": [2]}, "expected one column of integers"),
        ("a.parquet", {"text": ["x"]}, "among text"),
        ("a.csv", "", "among none"),
        ("a.csv", "length\n", "it is empty"),
        ("a.csv", "length\n5\n\nx\n", "row 1 is 'x'"),
        ("a.csv", "5\nNaN\n", "row 1 is nan"),
        ("a.csv", "5\n-1\n", "row 1 is -1"),
        ("a.csv", "a,length\n1,5\n2\n", "row 1 is '2'"),
        ("a.csv", "1,2\n3,4\n", "expected one column, or one called length"),
        ("a.csv", b"\xff\xfe5\x00", "cannot take lengths"),
        ("a.txt", "5\n", r"expected a file \.npy, \.parquet, \.csv, or lognormal:"),
    ],
)
def test_what_is_no_length_is_refused_in_one_line(tmp_path, name, content, reason):
    with pytest.raises(UsageError, match=reason) as raised:
        read_lengths(write(tmp_path / name, content))
    assert name in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["a.npy", "a.parquet", "a.csv"])
def test_a_file_that_is_not_there(tmp_path, name):
    with pytest.raises(UsageError, match="there is no such file"):
        read_lengths(tmp_path / name)
    (tmp_path / name).mkdir()
    with pytest.raises(UsageError, match="cannot take lengths"):
        read_lengths(tmp_path / name)
