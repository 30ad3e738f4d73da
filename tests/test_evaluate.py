"""`dflash evaluate` as a person meets it."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from commands import run_command
from decoding import drafter_for, random_target
from safetensors.torch import load_file, save_file

from dflash import command_line
from dflash.cli import cli
from dflash.data.store import StoreSample, TokenStore, write_store
from dflash.errors import UsageError
from dflash.models.decode import decode
from dflash.models.export import write_drafter
from dflash.models.published_config import serving_facts
from dflash.models.target import load_causal_lm
from dflash.training import evaluation
from dflash.training.evaluation import choose_prompts
from dflash.training.teacher_forced import Parity

PROMPTS = 4


@pytest.fixture(scope="module")
def checkpoint(small_target, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "drafter"
    write_drafter(folder, drafter_for(load_causal_lm(small_target)), serving_facts(small_target))
    return folder


@pytest.fixture
def arguments(checkpoint, small_target, small_store):
    return [
        *("evaluate", str(checkpoint), "--target", str(small_target), "--data", str(small_store)),
        *("--prompts", str(PROMPTS), "--max-new-tokens", "12"),
    ]


@pytest.fixture
def dflash(capsys, monkeypatch):
    """The command in this process: exit code, standard output, standard error."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments):
        code = command_line.run_command(cli, "dflash", list(arguments))
        captured = capsys.readouterr()
        return int(code), captured.out, captured.err

    return run


def unfolded(text):
    return " ".join(text.split())


def test_it_shows_a_table_and_writes_the_figures(arguments, small_store, tmp_path):
    result = run_command("dflash", *arguments, "--check", "3", "--json", "figures.json", cwd=tmp_path)
    assert result.code == 0, result.err
    found = json.loads((tmp_path / "figures.json").read_text())
    assert found["fingerprint"] == TokenStore.open(small_store).fingerprint
    lengths = [response["lengths"] for response in found["responses"]]
    every = [length for each in lengths for length in each]
    assert found["histogram"] == [every.count(length) for length in range(1, 9)]
    assert found["tau"] == pytest.approx(np.mean([np.mean(each) for each in lengths]))
    assert found["pooled_tau"] == pytest.approx(np.mean(every)) == pytest.approx(1 + sum(found["slots"]))
    assert found["teacher_forced_length"] == pytest.approx(found["pooled_tau"])
    assert found["parity"] == {"same": len(every), "verifications": len(every)}
    assert found["new_tokens"] == PROMPTS * 12 and found["target_forwards"] == PROMPTS + len(every)
    assert [response["same_as_plain"] for response in found["responses"]] == [True] * 3 + [None]
    for response in found["responses"]:
        assert response["new_tokens"] == 12 == 1 + sum(response["lengths"])
        assert response["teacher_forced_lengths"] == response["lengths"]
        assert response["row"] >= 200, "held out"
    assert "identical to plain decoding: 3 of 3" in result.out
    assert f"equal lengths at {len(every)} of {len(every)} verifications" in result.out
    assert f"{found['tau']:.3f} mean over responses, 95 % interval" in result.out
    assert all(len(line) <= 200 and line == line.rstrip() for line in result.out.splitlines())


def test_json_on_standard_output_stands_alone(arguments, dflash):
    code, out, _ = dflash(*arguments, "--json", "-")
    assert code == 0
    assert json.loads(out)["temperature"] == 0


def test_the_table_fits_in_80_columns(arguments, dflash):
    _, out, _ = dflash(*arguments)
    # The folder's name is as long as it is.
    assert max(len(line) for line in out.splitlines() if "drafter" not in line) <= 80


def test_sampled_text_depends_on_the_seed_and_has_no_parity(arguments, dflash):
    def found(*more):
        code, out, _ = dflash(*arguments, "--temperature", "1", "--json", "-", *more)
        assert code == 0
        return json.loads(out)

    one, again, other = found(), found(), found("--seed", "1")
    assert one == again
    assert one["responses"] != other["responses"]
    assert one["parity"] is None and one["teacher_forced_length"] >= 1
    assert all(response["same_as_plain"] is None for response in one["responses"])


def test_text_that_differs_from_plain_decoding_is_exit_3(arguments, dflash, monkeypatch):
    plain = evaluation.decode_plainly
    monkeypatch.setattr(evaluation, "decode_plainly", lambda *given: plain(*given) + 1)
    code, out, _ = dflash(*arguments, "--check", "2")
    assert code == 3
    assert "identical to plain decoding: 0 of 2; not the responses to store rows 2" in unfolded(out)
    assert dflash(*arguments, "--check", "0")[0] == 0


def test_lengths_that_training_sees_otherwise_are_exit_3(arguments, dflash, monkeypatch):
    monkeypatch.setattr(evaluation, "parity", lambda *_: Parity(5, 20))
    code, out, _ = dflash(*arguments)
    assert code == 3
    assert "equal lengths at 5 of 20 verifications; training and decoding do not see" in unfolded(out)


def interrupted_after(responses, monkeypatch):
    done = []

    def stopped(*given):
        if len(done) == responses:
            raise KeyboardInterrupt
        done.append(decode(*given))
        return done[-1]

    monkeypatch.setattr(evaluation, "decode", stopped)


def test_an_interrupt_shows_what_is_done(arguments, dflash, monkeypatch, tmp_path):
    interrupted_after(2, monkeypatch)
    code, out, err = dflash(*arguments, "--json", str(tmp_path / "figures.json"))
    assert code == 130
    assert "2 prompts" in out and "interrupted" in out and "Traceback" not in err
    found = json.loads((tmp_path / "figures.json").read_text())
    assert len(found["responses"]) == 2 and found["interrupted"]
    assert found["tau"] >= 1 and found["teacher_forced_length"] is None


def test_an_interrupt_before_the_first_response_shows_nothing(arguments, dflash, monkeypatch):
    interrupted_after(0, monkeypatch)
    code, out, err = dflash(*arguments)
    assert (code, out) == (130, "")
    assert err.splitlines()[-1].startswith("dflash: interrupted")


def changed_weights(checkpoint, folder, change):
    folder.mkdir()
    weights = load_file(checkpoint / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text((checkpoint / "config.json").read_text())
    return folder


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda weights: weights.pop("fc.weight"), "fc.weight"),
        (lambda weights: weights.update({"lm_head.weight": torch.zeros(2)}), "lm_head.weight"),
        (lambda weights: weights.update({"norm.weight": torch.zeros(7)}), "norm.weight"),
    ],
    ids=["missing", "extra", "misshapen"],
)
def test_a_checkpoint_with_other_tensors_is_refused(checkpoint, arguments, dflash, tmp_path, change, words):
    folder = changed_weights(checkpoint, tmp_path / "drafter", change)
    arguments[1] = str(folder)
    code, out, err = dflash(*arguments)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert words in err


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"hidden_size": 32}, "hidden_size 24, not 32 as in"),
        ({"vocab_size": 98}, "vocab_size 97, not 98 as in"),
        ({"num_hidden_layers": 9}, "num_hidden_layers 8, not 9 as in"),
    ],
)
def test_the_drafter_of_another_target_is_refused(arguments, dflash, tmp_path, sizes, words):
    random_target("Qwen3", **sizes).save_pretrained(tmp_path / "target")
    arguments[3] = str(tmp_path / "target")
    code, _, err = dflash(*arguments)
    assert code == 2
    assert re.search(words, err.splitlines()[-1])


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--data", "absent.arrow"], "absent.arrow"),
        (["--target", "absent"], "absent is no model folder"),
        (["--prompts", "0"], "--prompts"),
        (["--device", "nothing"], "--device nothing cannot be used here"),
        (["--temperature", "1", "--check", "3"], "--check compares greedy text only"),
        (["--temperature", "nan"], "--temperature nan is no temperature"),
        (["--temperature", "inf"], "--temperature inf is no temperature"),
    ],
)
def test_misuse_is_one_line_and_exit_2(arguments, dflash, more, words):
    code, out, err = dflash(*arguments, *more)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert words in err


def store_of(path, *masks, held_out=True, token=5):
    samples = (
        StoreSample(np.full(len(mask), token), mask, f"sample {row}", held_out)
        for row, mask in enumerate(masks)
    )
    write_store(path, samples, {})
    return TokenStore.open(path)


def test_a_prompt_is_what_stands_before_the_first_supervised_token(tmp_path):
    masks = [0, 0, 0, 1, 0, 1], [1] * 40, [1] * 10, [0] * 7
    store = store_of(tmp_path / "store.arrow", *masks)
    prompts = choose_prompts(store, 4, None, 97)
    assert [(row, len(prompt)) for row, prompt in prompts] == [(0, 3), (1, 32), (2, 10), (3, 7)]
    assert [len(prompt) for _, prompt in choose_prompts(store, 4, 8, 97)] == [6, 8, 8, 7]


def test_a_store_that_gives_no_prompt_is_refused(tmp_path):
    store = store_of(tmp_path / "train.arrow", [0, 1, 1], held_out=False)
    with pytest.raises(UsageError, match="has no held-out sample"):
        choose_prompts(store, 4, None, 97)
    store = store_of(tmp_path / "other.arrow", [0, 1, 1], token=97)
    with pytest.raises(UsageError, match=r"row 0 has token id 97, the target knows 97: .*another tokenizer"):
        choose_prompts(store, 4, None, 97)
