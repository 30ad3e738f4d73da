"""Rows of stored runs for spreadsheets and scripts."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from dflash.bench.store_tables import columns


def to_csv(rows: Sequence[dict[str, Any]], table: str) -> bytes:
    """UTF-8, a header and a line for each row. Null is an empty cell; lists and maps are JSON."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns(table), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})
    return text.getvalue().encode()


def to_json(rows: Sequence[dict[str, Any]]) -> bytes:
    """UTF-8, an array of objects."""
    return json.dumps([_plain(row) for row in rows], indent=2, allow_nan=False).encode() + b"\n"


def _cell(value: object) -> object:
    plain = _plain(value)
    return json.dumps(plain) if isinstance(plain, list | dict) else plain


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        # Arrow gives a map as a list of pairs.
        if value and all(isinstance(one, tuple) for one in value):
            return {str(key): _plain(one) for key, one in value}
        return [_plain(one) for one in value]
    return value
