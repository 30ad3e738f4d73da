"""Rows become samples: prompts, responses, documents and the samples of a token store."""

from __future__ import annotations

import numpy as np
import pytest
from chat_templates import CHATML, save_chat_tokenizer

from dflash.data.documents import Bad, Chat, Pair, Row, Text, Tokens
from dflash.data.rules import Rules
from dflash.data.sample import sample_tokenizer
from dflash.data.tokenisation import RowTokenizer, Tokenisation, Treatment
from dflash.data.tokenizer import TextTokenizer
from dflash.errors import UsageError

END = 0  # of the sample's tokenizer


def encode(text):
    return sample_tokenizer().encode(text).ids


def row(content, number=0):
    return Row(number, f"x:{number}", f"x:{number}", content)


def store_row(ids, mask, held_out=False):
    return Tokens("s", np.array(ids, np.int32).tobytes(), np.array(mask, np.uint8).tobytes(), held_out)


@pytest.fixture(scope="module")
def tokenizer():
    return TextTokenizer.load("sample", ("<|mask|>",))


def samples(tokenizer, *contents, **treatment):
    return RowTokenizer(tokenizer, Treatment(**treatment)).samples([row(content) for content in contents])


def test_prompt_and_response_are_encoded_apart(tokenizer):
    """Together they would be "return", one token."""
    (sample,) = samples(tokenizer, Pair("ret", "urn"))
    prompt, response = encode("ret"), [*encode("urn"), END]
    assert len(encode("return")) == 1
    assert sample == (prompt + response, [0] * len(prompt) + [1] * len(response), None)


def test_a_document_is_supervised_but_for_its_head(tokenizer):
    ids = [*encode("def f(x): return x"), END]
    text = Text("def f(x): return x")
    assert samples(tokenizer, text)[0] == (ids, [1] * len(ids), None)
    assert samples(tokenizer, text, prompt_tokens=3)[0] == (ids, [0] * 3 + [1] * (len(ids) - 3), None)
    assert samples(tokenizer, text, prompt_tokens=100)[0] == (ids, [0] * len(ids), None)
    assert samples(tokenizer, Text("x<|endoftext|>"))[0].ids == [*encode("x"), END], "one end is enough"


def test_a_token_stores_sample_stays_as_it_is_but_for_its_head(tokenizer):
    content = store_row([5, 6, 7, 8], [0, 0, 1, 0])
    assert samples(tokenizer, content)[0] == ([5, 6, 7, 8], [0, 0, 1, 0], None)
    assert samples(tokenizer, content, prompt_tokens=1)[0] == ([5, 6, 7, 8], [0, 1, 1, 1], None)
    assert "2048 is not in the tokenizer's vocabulary" in samples(tokenizer, store_row([2048], [1]))[0]


def test_rows_of_all_kinds_keep_their_places(tokenizer):
    contents = [Text("a"), Bad("broken"), Pair("b", "c"), store_row([9, 9], [1, 1]), Pair("d"), Text("e")]
    found = samples(tokenizer, *contents)
    assert found[1] == "broken"
    assert found[4] == "its response is empty"
    assert [found[i].ids for i in (0, 2, 3, 5)] == [
        [*encode("a"), END],
        [*encode("b"), *encode("c"), END],
        [9, 9],
        [*encode("e"), END],
    ]


def test_a_pair_as_a_chat_is_that_chat(tmp_path):
    tokenizer = TextTokenizer.load(str(save_chat_tokenizer(tmp_path, CHATML)))
    chat = Chat([{"role": "user", "content": "p"}, {"role": "assistant", "content": "r"}])
    one, other = samples(tokenizer, Pair("p", "r"), chat, pairs_as_chats=True)
    assert one == other
    assert tokenizer.decode([t for t, flag in zip(one.ids, one.mask, strict=True) if flag]) == "r<|im_end|>"


def test_no_template_is_no_rows_fault(tokenizer):
    with pytest.raises(UsageError, match="no chat template"):
        samples(tokenizer, Chat([{"role": "user", "content": "x"}]))


def prompt_of(tokenizer, content, **treatment):
    turns = RowTokenizer(tokenizer, Treatment(**treatment)).turns(row(content))
    return turns if isinstance(turns, str) else next(turns, None)


def test_what_a_response_is_made_from(tokenizer):
    content = store_row([5, 6, 7, 8], [0, 0, 1, 1])
    assert prompt_of(tokenizer, content) == [5, 6]
    assert prompt_of(tokenizer, content, prompt_tokens=3) == [5, 6, 7]
    assert prompt_of(tokenizer, content, prompt_tokens=4) == [5, 6, 7, 8]
    assert prompt_of(tokenizer, content, prompt_tokens=5) is None
    assert (
        prompt_of(tokenizer, Text("def f(x): return x"), prompt_tokens=2) == encode("def f(x): return x")[:2]
    )
    assert prompt_of(tokenizer, Pair("def f")) == encode("def f")
    assert "--prompt-tokens" in prompt_of(tokenizer, Text("x"))
    assert "--prompt-tokens" in prompt_of(tokenizer, store_row([5, 6], [1, 1]))
    assert prompt_of(tokenizer, Bad("broken")) == "broken"


def test_a_response_makes_the_sample(tokenizer):
    turns = RowTokenizer(tokenizer, Treatment()).turns(row(Pair("def f")))
    prompt = next(turns)
    with pytest.raises(StopIteration) as end:
        turns.send([7, 8, END])
    assert end.value.value == ([*prompt, 7, 8, END], [0] * len(prompt) + [1, 1, 1], None)


def test_text_with_the_mask_token_is_dropped_and_a_megabyte_is_not():
    """A long line without a space is a text as any other, and so is a megabyte."""
    job = Tokenisation(TextTokenizer.load("sample"), Treatment(), Rules(mask_id=2, max_tokens=500))
    contents = [Text("fill <|mask|> in"), Text("é7" * 100_000), Text("def f(): pass\n" * 70_000)]
    outcomes = job.open()([row(content, number) for number, content in enumerate(contents)]).outcomes
    assert [outcome.dropped for outcome in outcomes] == ["mask_token", None, None]
    assert [outcome.cut for outcome in outcomes] == [None, "too_long", "too_long"]
    assert [outcome.kept_tokens for outcome in outcomes] == [0, 500, 500]
    assert outcomes[1].tokens >= 200_000
