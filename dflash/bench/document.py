"""What is written as JSON, for others to read."""

from __future__ import annotations

import math

import msgspec


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A record that is written whole."""

    def to_json(self, indent: int = 0) -> bytes:
        """As UTF-8 JSON, on one line or indented. ValueError on a value that JSON cannot hold."""
        wrong = not_finite(msgspec.to_builtins(self))
        if wrong is not None:
            raise ValueError(f"a {type(self).__name__} holds {wrong}, which JSON cannot say")
        text = msgspec.json.encode(self)
        return msgspec.json.format(text, indent=indent) if indent else text


def not_finite(value: object) -> float | None:
    """The first float in nested lists and dictionaries that is NaN or infinite."""
    if isinstance(value, float):
        return None if math.isfinite(value) else value
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return None
    return next((wrong for wrong in map(not_finite, value) if wrong is not None), None)
