"""Chunks of rows with the target's own responses: right, kept, and taken up only where they fit."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from chat_templates import CHATML, STRICT, save_chat_tokenizer
from oracles import SMALL_SIZES
from transformers import Qwen3Config, Qwen3ForCausalLM

from dflash.data.documents import Bad, Chat, Pair, Row, Tokens
from dflash.data.rules import Rules
from dflash.data.tokenisation import Treatment
from dflash.data.tokenizer import TextTokenizer
from dflash.models.generation import Decoding
from dflash.models.regeneration import Regeneration
from dflash.models.target import load_causal_lm

CHAT = [
    {"role": "user", "content": "Hi?"},
    {"role": "assistant", "content": "What was said before."},
    {"role": "user", "content": "And?"},
    {"role": "assistant", "content": "No more."},
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Tokenizers with a template, and a target that has their tokens."""
    torch.manual_seed(3)
    folder = tmp_path_factory.mktemp("chat")
    sizes = {**SMALL_SIZES, "vocab_size": 2050, "num_hidden_layers": 2}
    model = Qwen3ForCausalLM(Qwen3Config(**sizes, max_position_embeddings=96, tie_word_embeddings=False))
    model.save_pretrained(folder / "target")
    save_chat_tokenizer(folder / "chatml", CHATML)
    save_chat_tokenizer(folder / "strict", STRICT)
    return folder


@pytest.fixture
def job(folders, tmp_path):
    def make(**changes):
        settings = {
            "tokenizer": TextTokenizer.load(str(folders / "chatml")),
            "treatment": Treatment(),
            "rules": Rules(),
            "target": str(folders / "target"),
            "target_hash": "a",
            "decoding": Decoding(8, batch_size=3),
            "device": "cpu",
            "dtype": "float32",
            "skip_bad": False,
            "kept": str(tmp_path / "kept"),
        }
        return Regeneration(**{**settings, **changes})

    return make


def rows(*contents):
    return [Row(i, f"x:{i}", f"x:{i}", content) for i, content in enumerate(contents)]


def tokens_of(outcome):
    return np.frombuffer(outcome.input_ids, np.int32).tolist()


def greedy(model, prompt, new):
    ids = list(prompt)
    for _ in range(new):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def test_every_response_is_the_targets_own(job, folders):
    """Of a pair, a token store's sample and a chat of two turns, the second after the first one made."""
    model, tokenizer = load_causal_lm(folders / "target"), TextTokenizer.load(str(folders / "chatml"))
    store = Tokens("s", np.array([5, 6, 7, 8], np.int32).tobytes(), bytes([0, 0, 1, 1]), True)
    pair, sample, chat = job().open()(rows(Pair("def f(x):", "pass"), store, Chat(CHAT))).outcomes

    prompt = tokenizer.encode(["def f(x):"])[0]
    assert tokens_of(pair) == prompt + greedy(model, prompt, 8)
    assert list(pair.loss_mask) == [0] * len(prompt) + [1] * 8
    assert tokens_of(sample) == [5, 6, *greedy(model, [5, 6], 8)]
    assert sample.held_out

    first = tokenizer.encode(["<|im_start|>user\nHi?<|im_end|>\n<|im_start|>assistant\n"])[0]
    answer = greedy(model, first, 8)
    between = tokenizer.encode(["<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n"])[0]
    second = first + answer + between
    assert tokens_of(chat) == second + greedy(model, second, 8)
    assert list(chat.loss_mask) == [0] * len(first) + [1] * 8 + [0] * len(between) + [1] * 8


def test_a_chunk_is_taken_up_only_by_what_would_make_it_again(job, folders, tmp_path):
    contents = [Pair("a"), Pair("b", "other responses do not matter, but are part of the row")]
    made = job().open()(rows(*contents))
    again = job().open()(rows(*contents))
    assert (made.reused, again.reused) == (False, True)
    assert made.outcomes == again.outcomes
    changes = [
        {"decoding": Decoding(9, batch_size=3)},
        {"decoding": Decoding(8, 0.5, batch_size=3)},
        {"decoding": Decoding(8, seed=1, batch_size=3)},
        {"decoding": Decoding(8, batch_size=2)},
        {"target_hash": "b"},
        {"tokenizer": TextTokenizer.load(str(folders / "strict"))},
        {"rules": Rules(max_tokens=9)},
        {"treatment": Treatment(prompt_tokens=1)},
        {"dtype": "float16"},
    ]
    assert not any(job(**change).open()(rows(*contents)).reused for change in changes)
    assert not job().open()(rows(*contents[::-1])).reused
    assert not job().open()(rows(*contents)[1:]).reused
    moved = job(target=str(folders / "target" / ".." / "target"))
    assert moved.open()(rows(*contents)).reused
    assert len(list((tmp_path / "kept").iterdir())) == len(changes) + 3


def test_a_torn_file_is_made_again(job, tmp_path):
    made = job().open()(rows(Pair("a")))
    (file,) = (tmp_path / "kept").iterdir()
    file.write_bytes(file.read_bytes()[:-3])
    again = job().open()(rows(Pair("a")))
    assert not again.reused
    assert again.outcomes == made.outcomes
    assert msgspec.msgpack.decode(file.read_bytes())


def test_no_room(job):
    """96 positions hold a prompt of 88 tokens with 8 new ones, and no longer one."""
    ids = [Tokens("s", np.full(n + 1, 9, np.int32).tobytes(), bytes([0] * n + [1]), False) for n in (88, 89)]
    outcomes = job().open()(rows(*ids)).outcomes
    assert [outcome.dropped for outcome in outcomes] == [None, "prompt_too_long"]
    assert outcomes[0].kept_tokens == 96
    outcomes = job(rules=Rules(max_tokens=88)).open()(rows(*ids)).outcomes
    assert [outcome.dropped for outcome in outcomes] == ["prompt_too_long", "prompt_too_long"]
    (outcome,) = job(rules=Rules(max_tokens=92)).open()(rows(ids[0])).outcomes
    assert (outcome.kept_tokens, outcome.cut) == (92, "too_long")


def test_bad_rows_stop_before_anything_is_made(job, tmp_path, folders):
    contents = [Pair("a"), Bad("broken"), Chat([{"role": "assistant", "content": "x"}])]
    strict = {"tokenizer": TextTokenizer.load(str(folders / "strict"))}
    outcomes = job(**strict).open()(rows(*contents)).outcomes
    assert [outcome.detail is None for outcome in outcomes] == [False, False]
    assert not (tmp_path / "kept").exists()
    outcomes = job(**strict, skip_bad=True).open()(rows(*contents)).outcomes
    assert [outcome.dropped for outcome in outcomes] == [None, "bad_row", "bad_row"]
    assert outcomes[1].detail == "broken"
    assert "refuses the messages" in outcomes[2].detail


def test_an_empty_response_is_dropped(job, folders, tmp_path):
    """The target ends at once: what it would say first is its end token."""
    model, tokenizer = load_causal_lm(folders / "target"), TextTokenizer.load(str(folders / "chatml"))
    prompt = tokenizer.encode(["def f(x):"])[0]
    model.generation_config.eos_token_id = greedy(model, prompt, 1)
    model.save_pretrained(tmp_path / "silent")
    (outcome,) = job(target=str(tmp_path / "silent")).open()(rows(Pair("def f(x):"))).outcomes
    assert (outcome.dropped, outcome.tokens) == ("too_few_supervised", len(prompt) + 1)
