"""Which tokens of a chat are the assistant's: against texts that are written out by hand."""

from __future__ import annotations

from itertools import groupby

import pytest
from chat_templates import (
    CHATML,
    COUNTING,
    END,
    MARKED,
    PLAIN,
    STRICT,
    THINKING,
    TRIMMING,
    save_chat_tokenizer,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.data.conversation import ChatTemplate
from dflash.data.tokenizer import TextTokenizer
from dflash.errors import UsageError

TEMPLATES = {
    "chatml": CHATML,
    "marked": MARKED,
    "thinking": THINKING,
    "trimming": TRIMMING,
    "plain": PLAIN,
    "counting": COUNTING,
    "strict": STRICT,
}
TWO_TURNS = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Hi?"},
    {"role": "assistant", "content": "Ho."},
    {"role": "user", "content": "And?"},
    {"role": "assistant", "content": "  Well, no."},
]


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizers")
    found = {name: save_chat_tokenizer(folder / name, text) for name, text in TEMPLATES.items()}
    found["other_end"] = save_chat_tokenizer(folder / "other_end", CHATML, eos="<|endoftext|>")
    return {name: TextTokenizer.load(str(folder)) for name, folder in found.items()}


@pytest.fixture
def parts(tokenizers):
    """Text of a sample in pieces, supervised ones in brackets."""

    def find(name, messages, **arguments):
        tokenizer = tokenizers[name]
        sample = ChatTemplate(tokenizer, arguments).sample(messages)
        assert len(sample.ids) == len(sample.mask)
        return pieces(tokenizer, sample)

    return find


def pieces(tokenizer, sample):
    runs = groupby(zip(sample.ids, sample.mask, strict=True), key=lambda pair: pair[1])
    return [
        [text] if supervised else text
        for supervised, run in runs
        for text in [tokenizer.decode([token for token, _ in run])]
    ]


@pytest.mark.parametrize("name", ["chatml", "marked", "other_end"])
def test_what_the_assistant_writes_is_supervised_with_its_end_token(parts, name):
    """Not so the newline behind it, which no model writes."""
    assert parts(name, TWO_TURNS) == [
        "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nHi?<|im_end|>\n<|im_start|>assistant\n",
        ["Ho.<|im_end|>"],
        "\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n",
        ["  Well, no.<|im_end|>"],
        "\n",
    ]


def test_a_template_without_end_tokens(parts):
    """A token begins in the space before "Ho", so it is the prompt's; the newline is all that ends a turn."""
    first, turn, *_ = parts("plain", TWO_TURNS[1:])
    assert (first + turn[0]).startswith("U: Hi?\nA: Ho.\n")
    assert turn[0].endswith(".\n")


def test_a_template_that_shows_history_without_its_reasoning(parts):
    """The last turn has a place for reasoning, an earlier one none: its end is its end token."""
    assert parts("thinking", TWO_TURNS[1:]) == [
        "<|im_start|>user\nHi?<|im_end|>\n<|im_start|>assistant\n",
        ["Ho.<|im_end|>"],
        "\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n",
        ["<think>\n\n</think>\n\n  Well, no.<|im_end|>"],
        "\n",
    ]


def test_arguments_reach_the_template(parts):
    assert parts("thinking", TWO_TURNS[1:3], enable_thinking=False) == [
        "<|im_start|>user\nHi?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        ["Ho.<|im_end|>"],
        "\n",
    ]


@pytest.mark.parametrize(
    ("name", "messages", "arguments"),
    [
        ("counting", TWO_TURNS, {}),
        # The prompt of the first turn has a place for reasoning that the history does not show.
        ("thinking", TWO_TURNS[1:], {"enable_thinking": False}),
    ],
)
def test_a_beginning_that_changes_when_more_follows_is_refused(tokenizers, name, messages, arguments):
    with pytest.raises(UsageError, match=r"around message \d differently when more follows.*generation"):
        ChatTemplate(tokenizers[name], arguments).sample(messages)


def test_a_template_that_refuses(tokenizers):
    with pytest.raises(UsageError, match=r"refuses the messages \(the first turn is a user\)"):
        ChatTemplate(tokenizers["strict"], {}).sample(TWO_TURNS)


def test_no_template(tmp_path):
    tokenizer = TextTokenizer.load(str(save_chat_tokenizer(tmp_path, None)))
    with pytest.raises(UsageError, match="no chat template; give an instruct model's"):
        ChatTemplate(tokenizer, {})


CONTENT = st.text(st.sampled_from("ab é漢🙂\n.<|>"), max_size=12)
CHATS = st.lists(st.tuples(CONTENT, CONTENT), min_size=1, max_size=3)


@settings(max_examples=60)
@given(turns=CHATS)
def test_the_template_is_right_for_any_content(tokenizers, turns):
    """The mask is all of the contents and end tokens, and the ids are those of the whole text."""
    messages, text, spans = [], "", []
    for question, answer in turns:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        text += f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        spans.append((len(text), len(text) + len(answer + END)))
        text += f"{answer}<|im_end|>\n"
    for name in ("chatml", "marked"):
        tokenizer = tokenizers[name]
        sample = ChatTemplate(tokenizer, {}).sample(messages)
        ids, offsets = tokenizer.encode_with_offsets(text)
        assert sample.ids == ids
        if name == "chatml":
            inside = [any(start <= first < end for start, end in spans) for first, _ in offsets]
        else:
            inside = [any(first < end and last > start for start, end in spans) for first, last in offsets]
        assert sample.mask == inside


def run(turns, answer):
    """Drive the turns of a chat; the prompts that were asked, and the sample."""
    asked, response = [], None
    while True:
        try:
            asked.append(turns.send(response))
        except StopIteration as end:
            return asked, end.value
        response = answer(len(asked) - 1)


@pytest.fixture
def driven(tokenizers):
    def drive(name, messages, answers, **arguments):
        """Answers are texts, or None where there is no room for one."""
        tokenizer = tokenizers[name]

        def answer(turn):
            return None if answers[turn] is None else tokenizer.encode([answers[turn]])[0]

        asked, sample = run(ChatTemplate(tokenizer, arguments).turns(messages), answer)
        assert len(sample.ids) == len(sample.mask)
        return [tokenizer.decode(ids) for ids in asked], pieces(tokenizer, sample), sample.cut

    return drive


def test_each_answer_follows_the_history_that_was_made(driven):
    first = (
        "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nHi?<|im_end|>\n<|im_start|>assistant\n"
    )
    between = "\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n"
    asked, sample, cut = driven("chatml", TWO_TURNS, ["New.<|im_end|>", "Newer<|im_end|>"])
    assert asked == [first, first + "New.<|im_end|>" + between]
    assert sample == [first, ["New.<|im_end|>"], between, ["Newer<|im_end|>"]]
    assert cut is None
    # Cut before its end: the template closes the turn, which nobody wrote.
    _, sample, _ = driven("chatml", TWO_TURNS, ["New", "Newer"])
    assert sample == [first, ["New"], "<|im_end|>" + between, ["Newer"]]


def test_a_chat_that_waits_for_an_answer_gets_one(driven):
    asked, sample, _ = driven("chatml", TWO_TURNS[1:2], ["Yes<|im_end|>"])
    assert len(asked) == 1
    assert sample == [asked[0], ["Yes<|im_end|>"]]


@pytest.mark.parametrize(
    ("name", "answers", "arguments"),
    [
        ("trimming", [" New.<|im_end|>", "x"], {}),  # the history has no space there
        ("thinking", ["<think>so</think>New.<|im_end|>", "x"], {}),  # nor the reasoning
        ("thinking", ["New.<|im_end|>", "x"], {"enable_thinking": False}),
        ("chatml", ["New.<|endoftext|>", "x"], {}),  # and another end than this
    ],
)
def test_a_chat_ends_where_the_history_is_not_what_was_written(driven, name, answers, arguments):
    asked, sample, cut = driven(name, TWO_TURNS[1:], answers, **arguments)
    assert len(asked) == 1
    assert sample == [asked[0], [answers[0]]]
    assert cut == "history_rewritten"


def test_no_room_for_an_answer(driven):
    asked, sample, cut = driven("chatml", TWO_TURNS, ["New.<|im_end|>", None])
    assert (len(asked), sample[-1], cut) == (2, ["New.<|im_end|>"], "prompt_too_long")
    assert driven("chatml", TWO_TURNS, [None])[1:] == ([], "prompt_too_long")


def test_tokens_of_an_answer_stay_as_they_were_chosen(tokenizers):
    """A target may spell a word in tokens that the tokenizer would not choose."""
    tokenizer = tokenizers["chatml"]
    letters = [tokenizer.encode([letter])[0][0] for letter in "return"]
    assert len(tokenizer.encode(["return"])[0]) < len(letters)
    end = tokenizer.eos_id
    _, sample = run(ChatTemplate(tokenizer, {}).turns(TWO_TURNS), lambda _: [*letters, end])
    supervised = [token for token, flag in zip(sample.ids, sample.mask, strict=True) if flag]
    assert supervised == [*letters, end] * 2
