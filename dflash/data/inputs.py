"""Reading rows from what a person names: files, folders, token stores, the word ``sample``.

Nothing here reads a whole file at once, but for a text file, which is one document.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from dflash.data.documents import Bad, Content, Fields, Row, Text, Tokens, choose_reading
from dflash.data.sample import prepare_sample
from dflash.data.store import TokenStore
from dflash.errors import UsageError

Found = tuple[str, Content, float]
"""place in the file (':12', or nothing), what is there, share of the file read until then"""
Rows = Callable[[], Iterator[Found]]

_ROWS_AT_ONCE = 256
_SPLIT = re.compile(r"(train|test|validation|valid|val|dev|eval)(?![a-zA-Z])")


@dataclass(frozen=True)
class Source:
    """One file of rows. ``name`` is its path below the folder of the input, ``size`` its bytes."""

    path: Path
    name: str
    size: int
    read: Rows
    store: TokenStore | None = None


def open_inputs(
    inputs: Iterable[str], fields: Fields, progress: Callable[[str], None] | None = None
) -> list[Source]:
    """The files of all inputs in their order, each one looked into, so that a wrong one is found at once.

    Args:
        inputs: paths; or ``sample``, which is prepared where it does not exist yet.
        progress: is given lines for a person while the sample is prepared.

    Raises:
        UsageError: an input does not exist, is of no known kind, is empty, or lacks the fields.
    """
    sources = []
    for item in inputs:
        if item == "sample":
            sources.append(_open_file(prepare_sample(progress), "sample", fields))
            continue
        path = Path(item)
        if path.is_dir():
            files = _files_of_folder(path)
            top = path.resolve()
            sources += [_open_file(f, f"{top.name}/{f.relative_to(path)}", fields) for f in files]
        elif path.exists():
            sources.append(_open_file(path, path.name, fields))
        else:
            raise UsageError(f"{path}: no such file or folder")
    return sources


def read_rows(sources: Sequence[Source], limit: int | None = None) -> Iterator[tuple[Row, float]]:
    """All rows (the first ``limit``) of the sources, each with the share of all input read until then.

    Raises:
        UsageError: a file is damaged in a way that leaves no next row. A row that is bad by itself is a row
            whose content is Bad.
    """
    total = sum(source.size for source in sources) or 1
    before, number = 0, 0
    for source in sources:
        where = str(source.path)
        rows = source.read() if limit is None else islice(source.read(), limit - number)
        for place, content, share in rows:
            done = (before + share * source.size) / total
            done = done if limit is None else max(done, (number + 1) / limit)
            name = content.name if isinstance(content, Tokens) else source.name + place
            yield Row(number, name, where + place, content), done
            number += 1
        before += source.size


def _open_file(path: Path, name: str, fields: Fields) -> Source:
    try:
        size = path.stat().st_size
        if size == 0:
            raise UsageError(f"{path}: empty; there is no row in it")
        if path.suffix == ".arrow" and _is_store(path):
            store = TokenStore.open(path)
            return Source(path, name, size, lambda: _store_rows(store), store)
        if path.suffix not in _OPENERS:
            known = ", ".join(_OPENERS)
            raise UsageError(f"{path}: unknown kind of file; known are {known}, and folders of them")
        return Source(path, name, size, _OPENERS[path.suffix](path, fields))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error})") from error


def _files_of_folder(folder: Path) -> list[Path]:
    """The shards of a saved Hugging Face data set, or the files of a folder of one kind and one split."""
    if (folder / "dataset_dict.json").is_file():
        children = ", ".join(str(child) for child in sorted(folder.iterdir()) if child.is_dir())
        raise UsageError(f"{folder} holds several splits: name one of {children}")
    if (folder / "state.json").is_file():
        try:
            shards = json.loads((folder / "state.json").read_bytes())["_data_files"]
            return [folder / shard["filename"] for shard in shards]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{folder}/state.json is not that of a saved data set ({error!r})") from error
    below = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    below = [path for path in below if not any(part.startswith(".") for part in path.parts)]
    by_kind = {suffix: [path for path in below if path.suffix == suffix] for suffix in _OPENERS}
    kinds = [files for files in by_kind.values() if files]
    if not kinds:
        raise UsageError(f"{folder}: no {', '.join(_OPENERS)} file in this folder")
    if len(kinds) > 1:
        raise UsageError(
            f"{folder} holds {kinds[0][0]} and {kinds[1][0]}: name the files to read, of one kind"
        )
    if kinds[0][0].suffix != ".txt":
        splits = {split[1] for path in kinds[0] for part in path.parts if (split := _SPLIT.match(part))}
        if len(splits) > 1:
            raise UsageError(
                f"{folder} holds the splits {', '.join(sorted(splits))}: name the files of one, "
                f"as in {folder / kinds[0][0]}"
            )
    return [folder / path for path in kinds[0]]


def _jsonl(path: Path, fields: Fields) -> Rows:
    records = _json_records(path)
    first = next(records, None)
    if first is None:
        raise UsageError(f"{path}: empty; there is no row in it")
    # The fields are those of the first record that can be read; the broken ones before it are rows too.
    number, record, _ = next((found for found in (first, *records) if isinstance(found[1], dict)), first)
    if isinstance(record, str):
        raise UsageError(f"{path}:{number}: {record}")
    reading = choose_reading(record, fields, f"{path}:{number}")

    def rows() -> Iterator[Found]:
        for number, record, share in _json_records(path):
            content = Bad(record) if isinstance(record, str) else reading.content(record)
            yield f":{number}", content, share

    return rows


def _json_records(path: Path) -> Iterator[tuple[int, dict[str, Any] | str, float]]:
    """Line number from 1, the object of that line or why there is none, and the share of bytes read."""
    size, read = path.stat().st_size, 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            read += len(line)
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line.strip():
                yield number, _json_object(line), read / size


def _json_object(line: bytes) -> dict[str, Any] | str:
    try:
        value = json.loads(line.decode().rstrip("\r\n"))
    except UnicodeDecodeError as error:
        return f"not UTF-8 (byte {error.start + 1} of the line)"
    except json.JSONDecodeError as error:
        return f"not JSON ({error.msg}, character {error.pos + 1} of the line)"
    except (RecursionError, ValueError) as error:  # a depth or a number that nobody means
        return f"not JSON that can be read ({error})"
    return value if isinstance(value, dict) else f"{json.dumps(value)[:40]} is no object with fields"


def _text(path: Path, _fields: Fields) -> Rows:
    def rows() -> Iterator[Found]:
        data = path.read_bytes()
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            yield f":{line}", Bad("not UTF-8"), 1.0
        else:
            yield "", Text(text) if text.strip() else Bad("the text is empty"), 1.0

    return rows


def _parquet(path: Path, fields: Fields) -> Rows:
    import pyarrow.parquet as pq

    with _refusing(path, "Parquet"):
        total = pq.read_metadata(path).num_rows
        reading = choose_reading(pq.read_schema(path).names, fields, str(path))
    if total == 0:
        raise UsageError(f"{path}: empty; there is no row in it")

    def rows() -> Iterator[Found]:
        row = 0
        with _refusing(path, "Parquet"), pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=reading.columns):
                for record in batch.to_pylist():
                    row += 1
                    yield f":{row}", reading.content(record), row / total

    return rows


def _arrow(path: Path, fields: Fields) -> Rows:
    with _refusing(path, "Arrow"), _arrow_reader(path) as (schema, _):
        reading = choose_reading(schema.names, fields, str(path))

    def rows() -> Iterator[Found]:
        row = 0
        with _refusing(path, "Arrow"), _arrow_reader(path) as (_, batches):
            for batch, share in batches:
                for record in batch.select(reading.columns).to_pylist():
                    row += 1
                    yield f":{row}", reading.content(record), share

    return rows


@contextlib.contextmanager
def _arrow_reader(path: Path) -> Iterator[tuple[Any, Iterator[tuple[Any, float]]]]:
    """Schema and record batches, each with the share read, of either format: stream (shards) or file."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as file:
        if file.read(6) == b"ARROW1":
            whole = pa.ipc.open_file(file)
            count = whole.num_record_batches
            yield whole.schema, ((whole.get_batch(i), (i + 1) / count) for i in range(count))
        else:
            file.seek(0)
            stream = pa.ipc.open_stream(file)
            yield stream.schema, ((batch, file.tell() / file.size()) for batch in stream)


@contextlib.contextmanager
def _refusing(path: Path, kind: str) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise UsageError(f"{path}: not a whole {kind} file ({reason})") from error


def _is_store(path: Path) -> bool:
    try:
        with _arrow_reader(path) as (schema, _):
            return {"input_ids", "loss_mask"} <= set(schema.names)
    except (ValueError, OSError):  # Arrow's errors are either; whoever reads the file next says what is wrong
        return False


def _store_rows(store: TokenStore) -> Iterator[Found]:
    held_out = np.zeros(len(store), np.bool_)
    held_out[store.rows(held_out=True)] = True
    for row in range(len(store)):
        ids, mask = store.sample(row)
        content = Tokens(store.name(row), ids.tobytes(), mask.tobytes(), bool(held_out[row]))
        yield f":{row}", content, (row + 1) / len(store)


_OPENERS: dict[str, Callable[[Path, Fields], Rows]] = {
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".jsonl": _jsonl,
    ".txt": _text,
}
