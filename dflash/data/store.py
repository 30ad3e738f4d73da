"""The token store: one memory-mapped Arrow IPC file of samples, read row by row in any order.

A row is a sample. An empty last record batch seals the file: its metadata holds what is known only after the
last sample, the fingerprint and the writer's notes. A file without the seal was never finished.
"""

from __future__ import annotations

import hashlib
import json
import operator
import struct
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

import numpy as np

from dflash.data.atomic import atomic_writer
from dflash.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

_SEAL = b"dflash.token_store"
_VERSION = 1
_TOKENS_PER_CHUNK = 1 << 22  # 20 MB of ids and masks: a few hundred chunks for 10^9 tokens


class StoreSample(NamedTuple):
    """A sample to write: ids (0 <= id < 2^31) and mask (0 or 1; 1 on supervised tokens), both [n], n >= 1.

    ``name`` says in messages where the sample comes from.
    """

    input_ids: ArrayLike
    loss_mask: ArrayLike
    name: str
    held_out: bool = False


class _Chunk(NamedTuple):
    """One record batch: the tokens of its row r are ``ids[offsets[r] : offsets[r + 1]]``."""

    offsets: memoryview  # of int32; gives plain integers, several times faster than an array's elements
    ids: NDArray[np.int32]
    mask: NDArray[np.uint8]
    names: Any


class TokenStore:
    """Samples by row number, from 0; a sample's row is its id. Open one with ``TokenStore.open``.

    Opening reads lengths and flags and no token. Reading copies nothing and is safe from several threads;
    all arrays are read-only.

    ``path``           the file
    ``lengths``        tokens of each row, int64 [n]
    ``valid_anchors``  positions a of each row with mask[a] and mask[a + 1], int64 [n]
    ``fingerprint``    SHA-256 (hex) over all rows in order, however they are cut into record batches
    ``metadata``       the writer's notes
    """

    def __init__(
        self, path: Path, chunks: list[_Chunk], columns: Mapping[str, NDArray[Any]], seal: Mapping[str, Any]
    ) -> None:
        self.path = path
        self.lengths: NDArray[np.int64] = columns["length"]
        self.valid_anchors: NDArray[np.int64] = columns["valid_anchors"]
        self.fingerprint: str = seal["fingerprint"]
        self.metadata: dict[str, Any] = seal["metadata"]
        self._held_out: NDArray[np.bool_] = columns["held_out"]
        self._chunks = chunks
        self._first_rows = np.cumsum([0, *(len(chunk.names) for chunk in chunks)]).tolist()

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process maps the same file."""
        return TokenStore.open, (self.path,)

    @classmethod
    def open(cls, path: str | Path) -> TokenStore:
        """Map the store at ``path``; UsageError if it is missing, truncated, corrupt or no store."""
        path = Path(path)
        try:
            return _open(path)
        except FileNotFoundError:
            raise UsageError(f"{path}: no such token store; prepare it first, or correct the path") from None
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
        ) as error:  # Arrow's errors are ValueError or OSError
            reason = str(error).partition("\n")[0].rstrip(".")
            raise UsageError(
                f"{path}: not a whole token store ({reason}); remove it and prepare the data again"
            ) from error

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def pad_id(self) -> int:
        """Token id for padding: the writer's note ``pad_id``, else 0."""
        return int(self.metadata.get("pad_id", 0))

    def rows(self, *, held_out: bool = False) -> NDArray[np.int64]:
        """Ascending row numbers of the training split, or of the held-out split, int64."""
        return np.flatnonzero(self._held_out == held_out)

    def tokens(self, row: SupportsIndex) -> NDArray[np.int32]:
        """Token ids of ``row``, int32 [length], a read-only view of the file."""
        return self.sample(row)[0]

    def loss_mask(self, row: SupportsIndex) -> NDArray[np.uint8]:
        """Loss mask of ``row``, uint8 [length], a read-only view of the file."""
        return self.sample(row)[1]

    def sample(self, row: SupportsIndex) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """Token ids and loss mask of ``row``: both for the price of one search."""
        chunk, index = self._locate(row)
        tokens = slice(chunk.offsets[index], chunk.offsets[index + 1])
        return chunk.ids[tokens], chunk.mask[tokens]

    def name(self, row: SupportsIndex) -> str:
        """Where the sample of ``row`` comes from."""
        chunk, index = self._locate(row)
        name: str = chunk.names[index].as_py()
        return name

    def verify(self) -> None:
        """Read every row and compare with the fingerprint; UsageError if anything has changed."""
        digest = hashlib.sha256()
        anchors = []
        for row in range(len(self)):
            ids, mask = self.sample(row)
            anchors.append(_count_valid_anchors(mask))
            _hash_sample(digest, ids, mask, self.name(row), bool(self._held_out[row]))
        if digest.hexdigest() != self.fingerprint or anchors != self.valid_anchors.tolist():
            raise UsageError(
                f"{self.path}: its rows do not match its fingerprint; remove it and prepare the data again"
            )

    def _locate(self, row: SupportsIndex) -> tuple[_Chunk, int]:
        row = operator.index(row)
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {self.path}: it has rows 0 to {len(self) - 1}")
        number = bisect_right(self._first_rows, row) - 1
        return self._chunks[number], row - self._first_rows[number]


def write_store(path: str | Path, samples: Iterable[StoreSample], metadata: Mapping[str, Any]) -> str:
    """Write ``samples`` in order as the token store ``path``, whole or not at all; return its fingerprint.

    ``metadata`` is stored as JSON and read after the last sample, so that what draws the samples can count in
    it. Memory: one chunk, whatever the number of samples. Raises UsageError on a sample that breaks a rule of
    StoreSample, and when ``path`` cannot be written.
    """
    pa = _pyarrow()
    path = Path(path)
    digest = hashlib.sha256()
    try:
        with atomic_writer(path) as file, pa.ipc.new_file(file, _schema()) as writer:
            chunk, tokens = [], 0
            for row, sample in enumerate(samples):
                chunk.append(_checked(sample, row))
                _hash_sample(digest, *chunk[-1])
                tokens += len(chunk[-1].input_ids)
                if tokens >= _TOKENS_PER_CHUNK:
                    writer.write_batch(_record_batch(chunk))
                    chunk, tokens = [], 0
            writer.write_batch(_record_batch(chunk))
            fingerprint = digest.hexdigest()
            seal = {"version": _VERSION, "fingerprint": fingerprint, "metadata": dict(metadata)}
            writer.write_batch(_record_batch([]), custom_metadata={_SEAL: json.dumps(seal)})
    except OSError as error:
        raise UsageError(
            f"{path}: cannot write a token store ({error.strerror or error}); give a path with room for it"
        ) from error
    return fingerprint


class _Checked(NamedTuple):
    input_ids: NDArray[np.int32]
    loss_mask: NDArray[np.uint8]
    name: str
    held_out: bool


def _pyarrow() -> Any:
    """The module, imported by the first that opens or writes a store: it takes a fifth of a second."""
    import pyarrow

    return pyarrow


def _schema() -> Any:
    pa = _pyarrow()
    return pa.schema(
        [
            ("input_ids", pa.list_(pa.int32())),
            ("loss_mask", pa.list_(pa.uint8())),
            ("length", pa.int64()),
            ("valid_anchors", pa.int64()),
            ("held_out", pa.bool_()),
            ("name", pa.string()),
        ]
    )


def _open(path: Path) -> TokenStore:
    pa = _pyarrow()
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    if not reader.schema.equals(_schema()):
        raise ValueError(f"its columns are {', '.join(map(str, reader.schema))}")
    batches = [reader.get_batch_with_custom_metadata(i) for i in range(reader.num_record_batches)]
    notes = (batches[-1].custom_metadata or {}) if batches else {}
    if _SEAL not in notes:
        raise ValueError("its writer never finished")
    seal = json.loads(notes[_SEAL])
    if seal["version"] != _VERSION:
        raise ValueError(f"its format is version {seal['version']}, this dflash reads version {_VERSION}")
    chunks = [_chunk(batch) for batch, _ in batches]
    columns = {
        name: np.concatenate([_view(batch.column(name).cast(kind), dtype) for batch, _ in batches])
        for name, kind, dtype in (
            ("length", pa.int64(), np.int64),
            ("valid_anchors", pa.int64(), np.int64),
            ("held_out", pa.uint8(), np.bool_),
        )
    }
    for column in columns.values():
        column.setflags(write=False)
    return TokenStore(path, chunks, columns, seal)


def _chunk(batch: Any) -> _Chunk:
    batch.validate(full=True)  # offsets and names; there is nothing to read in tokens
    if any(column.null_count for column in batch.columns):
        raise ValueError("it has empty cells")
    ids, mask, names = (batch.column(name) for name in ("input_ids", "loss_mask", "name"))
    offsets = _view(ids.offsets, np.int32)
    ends = np.concatenate([[0], np.cumsum(_view(batch.column("length"), np.int64))])
    if not (np.array_equal(offsets, ends) and np.array_equal(_view(mask.offsets, np.int32), ends)):
        raise ValueError("its lengths contradict its tokens")
    if not len(ids.values) == len(mask.values) == ends[-1]:
        raise ValueError("its tokens are incomplete")
    return _Chunk(offsets.data, _view(ids.values, np.int32), _view(mask.values, np.uint8), names)


def _view(array: Any, dtype: Any) -> NDArray[Any]:
    """An Arrow array without nulls as a read-only view. ``array.to_numpy`` would import pandas, in a third of
    a second."""
    item = np.dtype(dtype).itemsize
    _, values = array.buffers()
    return np.frombuffer(values, dtype, len(array), array.offset * item) if len(array) else np.empty(0, dtype)


def _record_batch(samples: list[_Checked]) -> Any:
    pa = _pyarrow()
    offsets = np.cumsum([0, *(len(sample.input_ids) for sample in samples)], dtype=np.int32)
    ids = np.concatenate([np.empty(0, np.int32), *(sample.input_ids for sample in samples)])
    mask = np.concatenate([np.empty(0, np.uint8), *(sample.loss_mask for sample in samples)])
    anchors = [_count_valid_anchors(sample.loss_mask) for sample in samples]
    columns = [
        pa.ListArray.from_arrays(offsets, ids),
        pa.ListArray.from_arrays(offsets, mask),
        pa.array(np.diff(offsets), pa.int64()),
        pa.array(anchors, pa.int64()),
        pa.array([sample.held_out for sample in samples], pa.bool_()),
        pa.array([sample.name for sample in samples], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_schema())


def _count_valid_anchors(mask: NDArray[np.uint8]) -> int:
    return int(np.count_nonzero(mask[:-1] & mask[1:]))


def _checked(sample: StoreSample, row: int) -> _Checked:
    ids, mask = np.asarray(sample.input_ids), np.asarray(sample.loss_mask)
    where = f"sample {sample.name!r} (row {row})"
    if ids.ndim != 1 or len(ids) == 0 or ids.dtype.kind not in "iu":
        raise UsageError(
            f"{where}: its tokens are {ids.dtype} {ids.shape}; give at least one integer in a row"
        )
    if mask.shape != ids.shape or mask.dtype.kind not in "biu" or np.any((mask != 0) & (mask != 1)):
        raise UsageError(f"{where}: its loss mask must hold one 0 or 1 for each of its {len(ids)} tokens")
    if ids.min() < 0 or ids.max() >= 2**31:
        raise UsageError(f"{where}: token ids from {ids.min()} to {ids.max()}; they must be in 0 .. 2^31 - 1")
    return _Checked(ids.astype(np.int32), mask.astype(np.uint8), sample.name, bool(sample.held_out))


def _hash_sample(
    digest: hashlib._Hash, ids: NDArray[np.int32], mask: NDArray[np.uint8], name: str, held_out: bool
) -> None:
    text = name.encode()
    # The sizes first: no two different stores give the same stream of bytes.
    digest.update(struct.pack("<qq?", len(ids), len(text), held_out))
    for part in (ids.astype("<i4", copy=False).tobytes(), mask.tobytes(), text):
        digest.update(part)
