"""The job of preparing a token store: rows in, samples and a ledger out, whole or not at all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dflash.data.atomic import atomic_writer
from dflash.data.documents import Chat, Content, Pair, Row, Text
from dflash.data.inputs import Source, read_rows
from dflash.data.rules import Outcome
from dflash.data.store import StoreSample, write_store
from dflash.data.tokenisation import Done
from dflash.data.workers import Job, work_in_order
from dflash.errors import UsageError

CHUNK_ROWS = 256
_CHUNK_CHARACTERS = 4_000_000  # so that chunks of books fit into memory too


@dataclass
class Counts:
    """What has become of the rows. Each row is kept or dropped; some kept ones are cut."""

    rows: int = 0
    samples: int = 0
    held_out: int = 0
    tokens: int = 0
    supervised_tokens: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    """dropped rows by reason"""
    cut: Counter[str] = field(default_factory=Counter)
    """cut samples by reason"""

    def add(self, outcome: Outcome) -> None:
        self.rows += 1
        if outcome.dropped:
            self.left_out[outcome.dropped] += 1
            return
        self.samples += 1
        self.held_out += outcome.held_out
        self.tokens += outcome.kept_tokens
        self.supervised_tokens += outcome.loss_mask.count(1)
        if outcome.cut:
            self.cut[outcome.cut] += 1


class Progress(Protocol):
    """Is told how far the work is."""

    def advanced(self, done: Done, counts: Counts, share: float) -> None:
        """Some more rows are done; ``share`` of the input is."""


def ledger_path(store: Path) -> Path:
    """Where the rows that are not in ``store``, or not whole, are listed: a line of JSON for each."""
    return store.with_name(f"{store.name}.ledger.jsonl")


def prepare(
    sources: Sequence[Source],
    job: Job[Sequence[Row], Done],
    out: Path,
    notes: Mapping[str, Any],
    progress: Progress,
    *,
    processes: int = 1,
    limit: int | None = None,
    skip_bad: bool = False,
    chunk_rows: int = CHUNK_ROWS,
) -> Counts:
    """Write the token store ``out`` and its ledger. The bytes do not depend on ``processes``.

    The store's metadata is ``notes`` and the counts. The ledger is there before the store is.

    Raises:
        UsageError: a row is bad and ``skip_bad`` is not set, no sample is left, or ``out`` cannot be written.
    """
    counts = Counts()
    metadata = dict(notes)
    chunks = _Chunks(read_rows(sources, limit), chunk_rows)
    with closing(work_in_order(job, chunks, processes)) as results:
        samples = _samples(results, chunks.shares, counts, metadata, out, progress, skip_bad)
        with closing(samples):
            write_store(out, samples, metadata)
    return counts


def _samples(
    results: Iterator[Done],
    shares: Sequence[float],
    counts: Counts,
    metadata: dict[str, Any],
    out: Path,
    progress: Progress,
    skip_bad: bool,
) -> Generator[StoreSample]:
    with atomic_writer(ledger_path(out)) as ledger:
        for number, done in enumerate(results):
            for outcome in done.outcomes:
                if outcome.detail and not skip_bad:
                    raise UsageError(f"{outcome.where}: {outcome.detail} (--skip-bad leaves such rows out)")
                counts.add(outcome)
                if outcome.dropped or outcome.cut:
                    ledger.write(_ledger_line(outcome))
                if not outcome.dropped:
                    ids = np.frombuffer(outcome.input_ids, np.int32)
                    mask = np.frombuffer(outcome.loss_mask, np.uint8)
                    yield StoreSample(ids, mask, outcome.name, outcome.held_out)
            progress.advanced(done, counts, shares[number])
        if counts.samples == 0:
            raise UsageError(f"no sample is left of {counts.rows} rows ({reasons(counts.left_out)})")
    metadata.update(
        samples=counts.samples,
        held_out=counts.held_out,
        tokens=counts.tokens,
        supervised_tokens=counts.supervised_tokens,
        left_out=dict(sorted(counts.left_out.items())),
        cut=dict(sorted(counts.cut.items())),
    )


def reasons(counter: Mapping[str, int]) -> str:
    """Counts by reason, for a person."""
    return ", ".join(f"{n:,} {why.replace('_', ' ')}" for why, n in sorted(counter.items())) or "none"


def _ledger_line(outcome: Outcome) -> bytes:
    entry = {
        "row": outcome.row,
        "name": outcome.name,
        "dropped": outcome.dropped,
        "cut": outcome.cut,
        "tokens": outcome.tokens or None,  # not known of a row that never became a sample
        "kept_tokens": outcome.kept_tokens or None,
        "detail": outcome.detail,
    }
    line = {key: value for key, value in entry.items() if value is not None}
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


class _Chunks:
    """Rows in chunks that depend on the rows alone; ``shares[i]`` of the input ends with chunk i."""

    def __init__(self, rows: Iterable[tuple[Row, float]], most: int) -> None:
        self.shares: list[float] = []
        self._rows = iter(rows)
        self._most = most

    def __iter__(self) -> Iterator[list[Row]]:
        while chunk := self._next():
            yield chunk

    def _next(self) -> list[Row]:
        chunk: list[Row] = []
        characters, share = 0, 1.0
        for row, share in islice(self._rows, self._most):  # noqa: B007  (the last one is the chunk's)
            chunk.append(row)
            characters += _characters(row.content)
            if characters >= _CHUNK_CHARACTERS:
                break
        self.shares.append(share)
        return chunk


def _characters(content: Content) -> int:
    match content:
        case Text():
            return len(content.text)
        case Pair():
            return len(content.prompt) + len(content.response or "")
        case Chat():
            return sum(len(message["content"]) for message in content.messages)
    return 0
