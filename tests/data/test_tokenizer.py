"""A tokenizer gives the text's tokens and nothing else, and a folder without one is refused."""

from __future__ import annotations

import json
import shutil

import pytest
from chat_templates import CHATML, END, PLAIN, START, save_chat_tokenizer
from tokenizers import Tokenizer, processors

from dflash.data.sample import MASK, sample_target_dir, sample_tokenizer
from dflash.data.tokenizer import TextTokenizer
from dflash.errors import UsageError
from dflash.models.shape import MASK_TOKENS

TEXTS = ["def f(x):\n    return x", "é ñ 漢字 🙂", " ", "<|endoftext|> and <|mask|>"]


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(sample_target_dir(), tmp_path / "copy", ignore=shutil.ignore_patterns("*.safetensors"))
    return tmp_path / "copy"


def change(folder, edit):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    edit(tokenizer)
    tokenizer.save(str(folder / "tokenizer.json"))


def test_ids_are_those_of_the_plain_tokenizer():
    tokenizer, plain = TextTokenizer.load("sample", MASK_TOKENS), sample_tokenizer()
    expected = [plain.encode(text, add_special_tokens=False).ids for text in TEXTS]
    assert tokenizer.encode(TEXTS) == tokenizer.encode_openings(TEXTS) == expected
    assert [tokenizer.encode_with_offsets(text)[0] for text in TEXTS] == expected
    assert [tokenizer.decode(ids) for ids in expected] == TEXTS
    assert tokenizer.mask_id == plain.token_to_id(MASK)
    assert (tokenizer.eos_id, tokenizer.pad_id, tokenizer.size) == (0, 1, 2048)


def test_a_tokenizer_file_cannot_cut_or_pad(folder):
    """Both settings are saved in tokenizer.json by whoever used them last."""
    change(folder, lambda t: (t.enable_truncation(5), t.enable_padding(length=64)))
    text = "a long text, " * 50
    found = TextTokenizer.load(str(folder)).encode([text, "b"])
    assert found == [sample_tokenizer().encode(text).ids, sample_tokenizer().encode("b").ids]


def test_a_beginning_token_opens_a_sample_and_an_end_token_does_not_close_a_prompt(folder):
    def add(tokenizer):
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|pad|> $A <|endoftext|>", special_tokens=[("<|pad|>", 1), ("<|endoftext|>", 0)]
        )

    change(folder, add)
    tokenizer = TextTokenizer.load(str(folder))
    plain = sample_tokenizer().encode("some text").ids
    assert tokenizer.encode(["some text"]) == [plain]
    assert tokenizer.encode_openings(["some text"]) == [[1, *plain]]


def test_digest_tells_apart_what_text_becomes(tmp_path):
    folders = [
        save_chat_tokenizer(tmp_path / "a", CHATML),
        save_chat_tokenizer(tmp_path / "again", CHATML),
        save_chat_tokenizer(tmp_path / "template", PLAIN),
        save_chat_tokenizer(tmp_path / "eos", CHATML, eos="<|endoftext|>"),
    ]
    loaded = [TextTokenizer.load(str(folder)) for folder in folders]
    assert loaded[0].digest == loaded[1].digest
    assert len({tokenizer.digest for tokenizer in loaded}) == 3
    assert {START, END} < set(loaded[0].special_tokens)


def test_what_is_no_tokenizer(tmp_path, small_target):
    with pytest.raises(UsageError, match="no such folder"):
        TextTokenizer.load(str(tmp_path / "none"))
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    for folder in (tmp_path, tmp_path.parent, small_target):
        with pytest.raises(UsageError, match="holds no tokenizer that can be loaded") as caught:
            TextTokenizer.load(str(folder))
        assert str(folder) in str(caught.value) and "\n" not in str(caught.value)
