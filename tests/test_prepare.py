"""dflash prepare as a person meets it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time

import pytest
from chat_templates import CHATML, save_chat_tokenizer
from commands import Result, command, environment

from dflash.cli import cli
from dflash.command_line import run_command
from dflash.data.sample import sample_tokenizer
from dflash.data.store import StoreSample, TokenStore, write_store
from dflash.data.tokenizer import TextTokenizer

REGENERATE = ("--tokenizer", "sample", "--regenerate", "sample", "--prompt-tokens", "6")


@pytest.fixture
def dflash(capsys, monkeypatch, tmp_path):
    """The command within this process, which has paid for its imports."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        capsys.readouterr()
        code = run_command(cli, "dflash", arguments)
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture
def documents(tmp_path):
    """Of 12 tokens and more, one of which holds the mask token."""
    records = [{"text": f"def function_{i}(argument):\n    return argument + {i}\n"} for i in range(90)]
    records[10]["text"] += "<|mask|>"
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return tmp_path


def lines(result):
    assert "Traceback" not in result.err
    return result.err.splitlines()


def test_chats_become_a_store(dflash, tmp_path):
    save_chat_tokenizer(tmp_path / "tokenizer", CHATML)
    chats = [
        {"messages": [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": f"{i} it is."}]}
        for i in range(50)
    ]
    chats.append({"messages": [{"role": "user", "content": "nobody answers"}]})
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    result = dflash("prepare", "chats.jsonl", "--tokenizer", "tokenizer", "--out", "new/s.arrow")
    assert result.code == 0, result.err
    assert not result.out
    assert re.search(r"s.arrow: 50 samples \(\d+ held out\), [\d,]+ tokens, [\d,]+ supervised", result.err)
    assert "left out: 1 too few supervised; cut: none; listed in new/s.arrow.ledger.jsonl" in result.err
    (entry,) = map(json.loads, (tmp_path / "new" / "s.arrow.ledger.jsonl").read_text().splitlines())
    assert (entry["name"], entry["dropped"]) == ("chats.jsonl:51", "too_few_supervised")
    store = TokenStore.open(tmp_path / "new" / "s.arrow")
    store.verify()
    assert store.name(7) == "chats.jsonl:8"
    ids, mask = store.sample(7)
    supervised = TextTokenizer.load(str(tmp_path / "tokenizer")).decode(ids[mask == 1].tolist())
    assert supervised == "7 it is.<|im_end|>"


def test_regenerated_text_is_the_same_in_any_number_of_processes_and_can_be_trained_on(dflash, documents):
    for name, more in [("one", ()), ("two", ("--processes", "2"))]:
        how = ("--max-new-tokens", "20", "--batch-size", "8", "--limit", "50", "--held-out", "0.2")
        result = dflash("prepare", "x.jsonl", *REGENERATE, *how, "--out", name, *more)
        assert result.code == 0, result.err
        assert re.search(r"50 rows in .*, [\d,]+ tokens generated/s", result.err)
        assert not (documents / f"{name}.regenerated").exists()
    assert (documents / "one").read_bytes() == (documents / "two").read_bytes()
    store = TokenStore.open(documents / "one")
    made = store.metadata["regenerated"]
    assert (made["target"]["architecture"], made["temperature"], made["max_new_tokens"]) == (
        "Qwen3ForCausalLM",
        0.0,
        20,
    )
    assert len(store) > 40
    end = sample_tokenizer().token_to_id("<|endoftext|>")
    for row in range(len(store)):
        ids, mask = store.sample(row)
        assert mask.tolist() == [0] * 6 + [1] * (len(ids) - 6)
        assert len(ids) == 26 or ids[-1] == end
        assert end not in ids[6:-1]
    settings = ("--set", "data.store=one", "--set", "batching.token_budget=400")
    trained = dflash("train", "--windows", "2", "--out", "run", *settings)
    assert trained.code == 0, trained.err


def test_an_interrupted_regeneration_goes_on_to_the_same_store(dflash, documents):
    arguments = ("x.jsonl", *REGENERATE, "--max-new-tokens", "8", "--batch-size", "2", "--out", "s.arrow")
    whole = dflash("prepare", *arguments[:-1], "whole.arrow")
    assert whole.code == 0, whole.err
    process = subprocess.Popen(
        command("dflash", "prepare", *arguments),
        cwd=documents,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    kept = documents / "s.arrow.regenerated"
    wait_for(process, lambda: len(list(kept.glob("*.msgpack"))) >= 2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    line = err.splitlines()[-1]
    found = re.search(
        r"interrupted: (\d+) rows are done, and are kept in s.arrow.regenerated: the same command", line
    )
    assert found and int(found[1]) >= 8
    assert not (documents / "s.arrow").exists()

    result = dflash("prepare", *arguments)
    assert result.code == 0, result.err
    assert (going := re.search(r"going on after (\d+) rows", result.err)) and int(going[1]) >= int(found[1])
    assert (documents / "s.arrow").read_bytes() == (documents / "whole.arrow").read_bytes()
    assert sorted(path.name for path in documents.iterdir()) == [
        "s.arrow",
        "s.arrow.ledger.jsonl",
        "whole.arrow",
        "whole.arrow.ledger.jsonl",
        "x.jsonl",
    ]


def wait_for(process, condition):
    while not condition():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_preparation_leaves_no_store(dflash, documents, number):
    text = (documents / "x.jsonl").read_text()
    (documents / "long.jsonl").write_text(text * 2000)
    arguments = ("--tokenizer", "sample", "--processes", "2", "--out", "s.arrow")
    process = subprocess.Popen(
        command("dflash", "prepare", "long.jsonl", *arguments),
        cwd=documents,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(process, lambda: any(path.stat().st_size for path in documents.glob(".s.arrow.ledger*.tmp")))
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert not (documents / "s.arrow").exists()
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert err.splitlines()[-1] == "interrupted: nothing is kept, s.arrow was not written"
        assert "Traceback" not in err
        assert not list(documents.glob(".*"))
    else:
        assert list(documents.glob(".s.arrow.*.tmp"))
    result = dflash("prepare", "x.jsonl", "--tokenizer", "sample", "--out", "s.arrow")
    assert result.code == 0, result.err
    assert not list(documents.glob(".*"))
    assert len(TokenStore.open(documents / "s.arrow")) == 89


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.jsonl", "--tokenizer", "sample"], "none.jsonl: no such file"),
        (["x.csv", "--tokenizer", "sample"], "x.csv: unknown kind of file"),
        (["empty.jsonl", "--tokenizer", "sample"], "empty.jsonl: empty"),
        (["broken.jsonl", "--tokenizer", "sample"], "broken.jsonl:2: not JSON"),
        (["latin.txt", "--tokenizer", "sample"], "latin.txt:2: not UTF-8"),
        (["x.jsonl", "--tokenizer", "sample", "--text", "body"], "x.jsonl:1: no field body; there are text"),
        (["x.jsonl", "--tokenizer", "."], "holds no tokenizer"),
        (["x.jsonl", "--tokenizer", "none"], "none: no such folder"),
        (["x.jsonl"], "--tokenizer"),
        (["--tokenizer", "sample"], "INPUT"),
        (
            ["x.jsonl", "--tokenizer", "sample", "--temperature", "1"],
            "--temperature says how --regenerate works",
        ),
        (["x.jsonl", "--tokenizer", "sample", "--held-out", "2"], "--held-out"),
        (["x.jsonl", "--tokenizer", "sample", "--template-arg", "x"], "NAME=VALUE"),
        (
            ["x.jsonl", "--tokenizer", "sample", "--regenerate", "sample"],
            "x.jsonl:1: a document has no prompt",
        ),
        (["x.jsonl", "--tokenizer", "sample", "--regenerate", "."], "config.json"),
        (["chat.jsonl", "--tokenizer", "sample"], "no chat template"),
    ],
)
def test_misuse_is_one_line_and_exit_2(dflash, documents, arguments, words):
    (documents / "x.csv").write_text("text\na\n")
    (documents / "empty.jsonl").touch()
    (documents / "broken.jsonl").write_text('{"text": "a"}\n{"text": \n')
    (documents / "latin.txt").write_bytes(b"one\ncaf\xe9\n")
    (documents / "chat.jsonl").write_text('{"messages": [{"role": "user", "content": "x"}]}\n')
    before = sorted(documents.iterdir())
    result = dflash("prepare", *arguments, "--out", "s.arrow")
    assert result.code == 2, result.err
    assert words in result.err and len(lines(result)) == 1
    assert sorted(documents.iterdir()) == before


def test_a_store_is_replaced_only_when_told(dflash, documents):
    (documents / "s.arrow").write_text("precious")
    arguments = ("x.jsonl", "--tokenizer", "sample", "--out", "s.arrow")
    refused = dflash("prepare", *arguments)
    assert (refused.code, len(lines(refused))) == (2, 1)
    assert "--overwrite" in refused.err
    assert (documents / "s.arrow").read_text() == "precious"
    assert dflash("prepare", *arguments, "--overwrite").code == 0
    assert len(TokenStore.open(documents / "s.arrow")) == 89


def test_a_store_or_a_tokenizer_of_another_kind(dflash, documents):
    save_chat_tokenizer(documents / "other", CHATML)
    arguments = ("--tokenizer", "other", "--regenerate", "sample", "--prompt-tokens", "4", "--out", "s.arrow")
    result = dflash("prepare", "x.jsonl", *arguments)
    assert (result.code, len(lines(result))) == (2, 1)
    assert "other and " in result.err and "have different vocabularies" in result.err
    write_store(documents / "foreign.arrow", [StoreSample([5, 6], [1, 1], "x")], {"mask_id": 7})
    result = dflash("prepare", "foreign.arrow", "--tokenizer", "sample", "--out", "s.arrow")
    assert (result.code, len(lines(result))) == (2, 1)
    assert "foreign.arrow was made with another tokenizer" in result.err
