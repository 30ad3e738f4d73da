"""The sample data set: big enough, natural, the same everywhere, prepared once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from dflash.data.corpus import SourceFunction, held_out
from dflash.data.sample import MASK, prepare_sample, sample_tokenizer
from dflash.data.store import TokenStore
from dflash.errors import UsageError


def test_hash_seed_and_cache_change_nothing(prepared: list[list[str]]) -> None:
    """Also: a damaged store is made again."""
    one, other = (Path(lines[-1]) for lines in prepared)
    assert one.parent != other.parent
    assert one.name == other.name
    assert one.read_bytes() == other.read_bytes()


def test_a_person_is_told_what_happens(prepared: list[list[str]], sample_store: TokenStore) -> None:
    for begin, end, path in prepared:
        assert path in begin
        assert f"{len(sample_store)} samples" in end
        assert "too short" in end


def test_a_prepared_sample_is_reused(sample_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASH_CACHE", str(sample_path.parent))
    before, lines = sample_path.stat(), list[str]()
    assert prepare_sample(lines.append) == sample_path
    assert lines == []
    assert sample_path.stat().st_ino == before.st_ino


def test_sizes(sample_store: TokenStore) -> None:
    assert len(sample_store) >= 11_000
    assert sample_store.lengths.min() >= 16
    assert sample_store.lengths.max() <= 1024
    assert sample_store.valid_anchors.min() >= 1
    p50, p95, p99 = np.percentile(sample_store.lengths, [50, 95, 99])
    assert p99 > 3 * p50  # a heavy tail
    assert p95 > 2 * sample_store.lengths.mean()
    # Natural: nothing piles up at the limit, as cut samples would.
    assert np.count_nonzero(sample_store.lengths == 1024) <= 5


def test_every_function_is_kept_or_counted(
    sample_store: TokenStore, library: Sequence[SourceFunction]
) -> None:
    left_out = sample_store.metadata["left_out"]
    assert sum(left_out.values()) + len(sample_store) == len(library)
    assert all(count > 0 for count in left_out.values())
    assert sample_store.metadata["samples"] == len(sample_store)
    assert sample_store.metadata["tokens"] == sample_store.lengths.sum()
    assert sample_store.metadata["held_out"] == len(sample_store.rows(held_out=True))


def test_held_out_is_whole_modules_and_about_four_percent(sample_store: TokenStore) -> None:
    modules = {
        flag: {sample_store.name(row).split(":")[0] for row in sample_store.rows(held_out=flag)}
        for flag in (True, False)
    }
    assert not modules[True] & modules[False]
    assert all(held_out(module) == flag for flag in (True, False) for module in modules[flag])
    assert len(modules[True]) >= 15
    held_out_rows = sample_store.rows(held_out=True)
    assert 0.03 < len(held_out_rows) / len(sample_store) < 0.05
    assert 0.03 < sample_store.lengths[held_out_rows].sum() / sample_store.lengths.sum() < 0.05


def test_no_text_twice_so_none_on_both_sides(sample_store: TokenStore) -> None:
    counts = Counter(sample_store.tokens(row).tobytes() for row in range(len(sample_store)))
    assert max(counts.values()) == 1


def test_tokens_are_the_text_and_the_mask_its_body(
    sample_store: TokenStore, library: Sequence[SourceFunction]
) -> None:
    tokenizer = sample_tokenizer()
    end = tokenizer.token_to_id("<|endoftext|>")
    texts = {f"{f.module}:{f.name}": f for f in library}
    names = Counter(f"{f.module}:{f.name}" for f in library)
    compared = 0
    for row in range(0, len(sample_store), 97):
        if names[sample_store.name(row)] > 1:
            continue  # a property's getter and setter share their name
        function, ids, mask = (
            texts[sample_store.name(row)],
            sample_store.tokens(row),
            sample_store.loss_mask(row),
        )
        assert ids[-1] == end
        assert end not in ids[:-1]
        first = int(np.flatnonzero(mask)[0])
        assert mask[first:].all()
        assert tokenizer.decode(ids[:first].tolist()) == function.prompt
        assert tokenizer.decode(ids[first:-1].tolist()) == function.response
        assert sample_store.valid_anchors[row] == len(ids) - first - 1
        compared += 1
    assert compared > 80


def test_mask_token_is_in_no_text(sample_store: TokenStore) -> None:
    mask_id = sample_tokenizer().token_to_id(MASK)
    assert mask_id is not None
    assert mask_id == sample_store.metadata["mask_id"]
    assert mask_id != sample_store.pad_id
    assert not any(
        np.isin([mask_id, sample_store.pad_id], sample_store.tokens(row)).any()
        for row in range(len(sample_store))
    )


def test_a_cache_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DFLASH_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UsageError, match=r"cannot make the cache .* set DFLASH_CACHE"):
        prepare_sample()
