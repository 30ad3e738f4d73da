"""Collation against a plain statement of what a padded micro-batch is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.data.collate import collate_packed, collate_padded
from dflash.data.store import StoreSample, TokenStore, write_store
from dflash.errors import UsageError

PAD = 99


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    path = tmp_path_factory.mktemp("collate") / "s.arrow"
    samples = [
        StoreSample([10 * n + i for i in range(n)], [i % 3 == 0 for i in range(n)], str(n))
        for n in range(1, 9)
    ]
    write_store(path, samples, {"pad_id": PAD})
    return TokenStore.open(path)


@settings(deadline=None)
@given(data=st.data())
def test_each_cell_is_the_samples_or_padding(store: TokenStore, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, 7), max_size=6))
    lengths = [data.draw(st.integers(1, row + 1)) for row in rows]  # row r holds r + 1 tokens
    batch = collate_padded(store, np.array(rows, np.int64), np.array(lengths, np.int64))
    longest = max(lengths, default=0)
    assert batch.rows.tolist() == rows
    assert batch.lengths.tolist() == lengths
    assert batch.input_ids.tolist() == [
        [10 * (row + 1) + i if i < length else PAD for i in range(longest)]
        for row, length in zip(rows, lengths, strict=True)
    ]
    assert batch.loss_mask.tolist() == [
        [int(i < length and i % 3 == 0) for i in range(longest)] for length in lengths
    ]
    assert batch.input_ids.dtype == batch.lengths.dtype == batch.rows.dtype == np.int64
    assert batch.loss_mask.dtype == np.uint8
    assert batch.input_ids.shape == batch.loss_mask.shape == (len(rows), longest)


@given(data=st.data())
def test_both_layouts_hold_the_same_documents(store: TokenStore, data: st.DataObject) -> None:
    rows = np.array(data.draw(st.lists(st.integers(0, 7), max_size=6)), np.int64)
    lengths = np.array([data.draw(st.integers(1, row + 1)) for row in rows.tolist()], np.int64)
    padded, packed = collate_padded(store, rows, lengths), collate_packed(store, rows, lengths)
    assert packed.input_ids.shape == packed.loss_mask.shape == (1, lengths.sum())
    assert packed.input_ids.dtype == np.int64 and packed.loss_mask.dtype == np.uint8
    for batch in (padded, packed):
        documents = [(ids.tolist(), mask.tolist()) for ids, mask in batch.documents()]
        assert documents == [
            (store.tokens(row)[:length].tolist(), store.loss_mask(row)[:length].tolist())
            for row, length in zip(rows, lengths, strict=True)
        ]
        assert (batch.rows.tolist(), batch.lengths.tolist()) == (rows.tolist(), lengths.tolist())
    assert [packed.layout, padded.layout] == ["packed", "padded"]


@pytest.mark.parametrize("length", [0, 4, -1])
def test_lengths_of_another_store_are_refused(store: TokenStore, length: int) -> None:
    with pytest.raises(UsageError, match=rf"row 2 has 3 tokens, {length} were asked for"):
        collate_padded(store, np.array([0, 2]), np.array([1, length]))
    with pytest.raises(UsageError, match=rf"row 2 has 3 tokens, {length} were asked for"):
        collate_packed(store, np.array([0, 2]), np.array([1, length]))
