"""What one row of an input holds, and how a record's fields become it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import msgspec

from dflash.errors import UsageError

Message = dict[str, Any]
Record = dict[str, Any]

_ROLES = {"human": "user", "gpt": "assistant"}
"""as older chat sets call them"""


class Text(msgspec.Struct, frozen=True, tag=True):
    """A whole document."""

    text: str


class Pair(msgspec.Struct, frozen=True, tag=True):
    """A prompt and what follows it. No response: only the prompt is known."""

    prompt: str
    response: str | None = None


class Chat(msgspec.Struct, frozen=True, tag=True):
    """Messages as chat templates take them: each has a ``role`` and a ``content``."""

    messages: list[Message]


class Tokens(msgspec.Struct, frozen=True, tag=True):
    """A sample of a token store, with its name there: int32 ids and uint8 mask as bytes."""

    name: str
    input_ids: bytes
    loss_mask: bytes
    held_out: bool


class Bad(msgspec.Struct, frozen=True, tag=True):
    """A row that cannot be read, and why."""

    problem: str


Content = Text | Pair | Chat | Tokens | Bad


class Row(msgspec.Struct, frozen=True):
    """One row of the inputs.

    ``number``  from 0, over all inputs
    ``name``    the sample's name in the store: file and line, without the folders above the input, so that
                the same data has the same fingerprint wherever it lies
    ``where``   the same with its folders, for messages
    """

    number: int
    name: str
    where: str
    content: Content


class Fields(msgspec.Struct, frozen=True):
    """Names of the fields that are read; None where the name is the usual one and the field may be absent."""

    messages: str | None = None
    prompt: str | None = None
    response: str | None = None
    text: str | None = None
    prompts_suffice: bool = False
    """whether a prompt without a response is a row (responses are generated)"""


class Reading(msgspec.Struct, frozen=True):
    """How the records of one input are read: the fields, and what they make."""

    columns: list[str]
    content: Callable[[Record], Content]


def choose_reading(names: Collection[str], fields: Fields, where: str) -> Reading:
    """What a record with these field names is: a chat, a pair or a document, looked for in this order.

    Where ``fields`` names some, only what they make is looked for.

    Raises:
        UsageError: no field says what the record is.
    """
    prompt, response, text = fields.prompt or "prompt", fields.response or "response", fields.text or "text"
    pair = [prompt] if fields.prompts_suffice and not fields.response else [prompt, response]
    chats = [fields.messages] if fields.messages else ["messages", "conversations"]
    any_named = any((fields.messages, fields.prompt, fields.response, fields.text))
    known: list[tuple[list[str], Callable[[Record], Content]]] = []
    if fields.messages or not any_named:
        known += [([name], partial(_chat, name)) for name in chats]
    if fields.prompt or fields.response or not any_named:
        known.append((pair, partial(_pair, prompt, response)))
    if fields.text or not any_named:
        known.append(([text], partial(_text, text)))
    for required, content in known:
        if set(required) <= set(names):
            read = [prompt, response] if required == pair else required
            return Reading([name for name in read if name in names], content)
    wanted = ", or ".join(" and ".join(required) for required, _ in known)
    raise UsageError(
        f"{where}: no field {wanted}; there are {', '.join(names) or 'none'}. "
        "Name what to read with --messages, with --prompt and --response, or with --text"
    )


def _text(name: str, record: Record) -> Content:
    problem = _problem_of_text(record, name)
    return Bad(problem) if problem else Text(record[name])


def _pair(prompt: str, response: str, record: Record) -> Content:
    problem = _problem_of_text(record, prompt)
    # A row without a response is for its reader to refuse, who may want nothing but the prompt.
    if not problem and record.get(response) not in (None, ""):
        problem = _problem_of_text(record, response)
    return Bad(problem) if problem else Pair(record[prompt], record.get(response) or None)


def _problem_of_text(record: Record, name: str) -> str | None:
    if name not in record:
        return f"no field {name!r}; there are {', '.join(record) or 'none'}"
    value = record[name]
    if not isinstance(value, str):
        return f"its {name!r} is {_kind(value)}, not text"
    if not value.strip():
        return f"its {name!r} is empty"
    return None if _is_unicode(value) else f"its {name!r} holds half a surrogate pair, which is no text"


def _chat(name: str, record: Record) -> Content:
    messages = record.get(name)
    if name not in record:
        return Bad(f"no field {name!r}; there are {', '.join(record) or 'none'}")
    if not isinstance(messages, list):
        return Bad(f"its {name!r} is {_kind(messages)}, not a list of messages")
    if not messages:
        return Bad(f"its {name!r} is empty")
    normal = []
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, dict):
            return Bad(f"message {number} is {_kind(message)}, not an object with role and content")
        # Columns give every message every key: those without a value were not there.
        fields = {key: value for key, value in message.items() if value is not None}
        role = fields.pop("from", fields.get("role"))
        content = fields.pop("value", fields.get("content"))
        if not isinstance(role, str):
            return Bad(f"message {number} has no role")
        if not isinstance(content, str) and not (content is None and fields.get("tool_calls")):
            return Bad(f"the content of message {number} is {_kind(content)}, not text")
        if content is not None and not _is_unicode(content):
            return Bad(f"message {number} holds half a surrogate pair, which is no text")
        normal.append({**fields, "role": _ROLES.get(role, role), "content": content or ""})
    return Chat(normal)


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "a truth value", list: "a list", dict: "an object", str: "text"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)
