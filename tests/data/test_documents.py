"""What a record is, and what is wrong with one."""

from __future__ import annotations

import pytest

from dflash.data.documents import Bad, Chat, Fields, Pair, Text, choose_reading
from dflash.errors import UsageError

CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]


@pytest.mark.parametrize(
    ("record", "fields", "content"),
    [
        ({"text": "a b"}, Fields(), Text("a b")),
        ({"prompt": "p", "response": "r", "id": 3}, Fields(), Pair("p", "r")),
        ({"messages": CHAT}, Fields(), Chat(CHAT)),
        ({"messages": CHAT, "prompt": "p", "response": "r", "text": "t"}, Fields(), Chat(CHAT)),
        ({"messages": CHAT, "text": "t"}, Fields(text="text"), Text("t")),
        ({"prompt": "p", "text": "t"}, Fields(), Text("t")),
        ({"prompt": "p", "text": "t"}, Fields(prompts_suffice=True), Pair("p")),
        (
            {"instruction": "p", "output": "r"},
            Fields(prompt="instruction", response="output"),
            Pair("p", "r"),
        ),
        ({"prompt": "p", "completion": "r"}, Fields(response="completion"), Pair("p", "r")),
        ({"prompt": "p", "response": ""}, Fields(), Pair("p")),
        ({"prompt": "p", "response": None}, Fields(), Pair("p")),
        (
            {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]},
            Fields(),
            Chat(CHAT),
        ),
        # Columns give a message every key of every other message.
        ({"c": [{**CHAT[0], "tool_calls": None}]}, Fields(messages="c"), Chat(CHAT[:1])),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [1]}]},
            Fields(),
            Chat([{"role": "assistant", "content": "", "tool_calls": [1]}]),
        ),
    ],
)
def test_what_a_record_is(record, fields, content):
    reading = choose_reading(record, fields, "file:1")
    assert reading.content(record) == content
    assert set(reading.columns) <= record.keys()
    assert reading.content({name: record[name] for name in reading.columns}) == content


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"text": ""}, "'text' is empty"),
        ({"text": " \n\t"}, "'text' is empty"),
        ({"text": 3}, "'text' is a number, not text"),
        ({"text": None}, "'text' is null, not text"),
        ({"text": True}, "'text' is a truth value, not text"),
        ({"text": "\ud800"}, "surrogate"),
        ({"prompt": "", "response": "r"}, "'prompt' is empty"),
        ({"prompt": "p", "response": ["r"]}, "'response' is a list, not text"),
        ({"messages": []}, "'messages' is empty"),
        ({"messages": "hi"}, "'messages' is text, not a list"),
        ({"messages": ["hi"]}, "message 1 is text, not an object"),
        ({"messages": [*CHAT, {"content": "x"}]}, "message 3 has no role"),
        ({"messages": [*CHAT, {"role": "user"}]}, "content of message 3 is null"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "content of message 1 is a list"),
        ({"messages": [{"role": "user", "content": "\udfff"}]}, "message 1 holds half a surrogate"),
    ],
)
def test_a_bad_record_says_why(record, problem):
    content = choose_reading(record, Fields(), "file:1").content(record)
    assert isinstance(content, Bad)
    assert problem in content.problem


@pytest.mark.parametrize("name", ["messages", "prompt", "text"])
def test_a_later_record_without_the_field(name):
    first = {
        "messages": {"messages": CHAT},
        "prompt": {"prompt": "p", "response": "r"},
        "text": {"text": "t"},
    }
    content = choose_reading(first[name], Fields(), "file:1").content({"other": 1})
    assert isinstance(content, Bad)
    assert f"no field {name!r}; there are other" in content.problem


@pytest.mark.parametrize(
    ("record", "fields", "words"),
    [
        ({"body": "x"}, Fields(), r"x\.jsonl:1: no field messages, or .* or text; there are body.*--text"),
        ({}, Fields(), "there are none"),
        ({"text": "x"}, Fields(text="body"), "no field body; there are text"),
        ({"text": "x"}, Fields(messages="chat"), "no field chat; there are text"),
        ({"prompt": "x"}, Fields(prompt="prompt"), "no field prompt and response; there are prompt"),
    ],
)
def test_no_field_that_is_known(record, fields, words):
    with pytest.raises(UsageError, match=words):
        choose_reading(record, fields, "x.jsonl:1")
