"""Row reads and collation from the token store, beside a numpy memmap of the same tokens.

    pytest benchmarks/test_store.py

The memmap is the least that can be done: one flat file and offsets, without names, masks or checks.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from dflash.data.collate import collate_padded
from dflash.data.store import StoreSample, TokenStore, write_store

if TYPE_CHECKING:
    from numpy.typing import NDArray

SAMPLES = 50_000
TOKEN_BUDGET = 49_152


@pytest.fixture(scope="module")
def lengths() -> NDArray[np.int64]:
    """Lognormal, 65 .. 8,191 tokens, mean about 600."""
    rng = np.random.default_rng(0)
    return np.clip(rng.lognormal(6.0, 0.9, SAMPLES), 65, 8191).astype(np.int64)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, lengths: NDArray[np.int64]) -> TokenStore:
    path = tmp_path_factory.mktemp("store") / "store.arrow"
    ids = np.arange(8192, dtype=np.int32)
    mask = np.ones(8192, np.uint8)
    write_store(path, (StoreSample(ids[:n], mask[:n], "") for n in lengths), {})
    return TokenStore.open(path)


@pytest.fixture(scope="module")
def memmap(
    tmp_path_factory: pytest.TempPathFactory, lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int32], list[int]]:
    path = tmp_path_factory.mktemp("memmap") / "tokens.bin"
    ids = np.arange(8192, dtype=np.int32)
    with path.open("wb") as file:
        for n in lengths:
            file.write(ids[:n].tobytes())
    return np.asarray(np.memmap(path, np.int32, "r")), np.cumsum([0, *lengths]).tolist()


@pytest.fixture(scope="module")
def rows() -> NDArray[np.int64]:
    return np.random.default_rng(1).integers(0, SAMPLES, 4096)


@pytest.fixture(scope="module")
def micro_batches(rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Eight micro-batches of rows of like length, each just within the budget."""
    ordered = rows[np.argsort(lengths[rows])]
    batches = []
    for start in np.linspace(0, len(ordered) - 200, 8).astype(int):
        stop = start + 1
        while stop < len(ordered) and (stop + 1 - start) * lengths[ordered[stop]] <= TOKEN_BUDGET:
            stop += 1
        batches.append(ordered[start:stop])
    return batches


def test_read_store(benchmark: Any, store: TokenStore, rows: NDArray[np.int64]) -> None:
    order = rows.tolist()
    total = benchmark(lambda: sum(len(store.tokens(row).copy()) for row in order))
    assert total == store.lengths[rows].sum()
    benchmark.extra_info["tokens"] = int(total)


def test_read_memmap(
    benchmark: Any,
    memmap: tuple[NDArray[np.int32], list[int]],
    rows: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> None:
    tokens, offsets = memmap
    order = rows.tolist()
    total = benchmark(lambda: sum(len(tokens[offsets[row] : offsets[row + 1]].copy()) for row in order))
    assert total == lengths[rows].sum()
    benchmark.extra_info["tokens"] = int(total)


def test_collate_store(benchmark: Any, store: TokenStore, micro_batches: list[NDArray[np.int64]]) -> None:
    result = benchmark(
        lambda: [collate_padded(store, batch, store.lengths[batch]) for batch in micro_batches]
    )
    assert all(batch.input_ids.size <= TOKEN_BUDGET for batch in result)
    benchmark.extra_info["tokens"] = sum(int(batch.lengths.sum()) for batch in result)


def test_collate_memmap(
    benchmark: Any,
    memmap: tuple[NDArray[np.int32], list[int]],
    store: TokenStore,
    micro_batches: list[NDArray[np.int64]],
    lengths: NDArray[np.int64],
) -> None:
    """Ids alone: the store's collation also reads the loss masks."""
    tokens, offsets = memmap

    def collate(batch: NDArray[np.int64]) -> NDArray[np.int64]:
        ids = np.zeros((len(batch), int(lengths[batch].max())), np.int64)
        for i, row in enumerate(batch.tolist()):
            text = tokens[offsets[row] : offsets[row + 1]]
            ids[i, : len(text)] = text
        return ids

    result = benchmark(lambda: [collate(batch) for batch in micro_batches])
    for batch, ids in zip(micro_batches, result, strict=True):
        assert np.array_equal(ids, collate_padded(store, batch, lengths[batch]).input_ids)
    benchmark.extra_info["tokens"] = int(sum(lengths[batch].sum() for batch in micro_batches))


def test_open_store(benchmark: Any, store: TokenStore) -> None:
    opened = benchmark(lambda: TokenStore.open(store.path))
    assert np.array_equal(opened.lengths, store.lengths)


def test_write_store(benchmark: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    samples = [StoreSample(rng.integers(0, 2048, 600), np.ones(600, np.uint8), str(i)) for i in range(2000)]
    benchmark.pedantic(write_store, (tmp_path / "s.arrow", samples, {}), rounds=5)
    assert len(TokenStore.open(tmp_path / "s.arrow")) == 2000
