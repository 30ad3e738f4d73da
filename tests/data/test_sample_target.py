"""The shipped tokenizer and target: small, loadable by transformers, and as good as their card says."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from dflash.data.sample import sample_target_dir, sample_tokenizer
from dflash.data.store import TokenStore


@pytest.fixture(scope="module")
def card() -> dict[str, Any]:
    card: dict[str, Any] = json.loads((sample_target_dir() / "card.json").read_text())
    return card


@pytest.fixture(scope="module")
def target() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(sample_target_dir()).eval()


def test_all_files_together_are_small() -> None:
    files = list(sample_target_dir().iterdir())
    names = {
        "README.md",
        "card.json",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert {file.name for file in files} == names
    assert sum(file.stat().st_size for file in files) <= 6_000_000


def test_tokenizer_of_transformers_is_the_same() -> None:
    from transformers import AutoTokenizer

    theirs, ours = AutoTokenizer.from_pretrained(sample_target_dir()), sample_tokenizer()
    text = 'def f(self, x=1_000):\n    """Dóc — x."""\n\n\treturn {x: "ß"  for x in  y}\n'
    assert theirs(text).input_ids == ours.encode(text).ids
    assert ours.decode(ours.encode(text).ids) == text
    special = [theirs.eos_token_id, theirs.pad_token_id, theirs.mask_token_id]
    assert special == [ours.token_to_id(token) for token in ("<|endoftext|>", "<|pad|>", "<|mask|>")]
    assert len(set(special)) == 3
    assert len(theirs) == ours.get_vocab_size() == 2048


def test_architecture(target: Any) -> None:
    import torch

    config = target.config
    assert type(target).__name__ == "Qwen3ForCausalLM"
    assert config.num_hidden_layers == 8
    assert 64 <= config.hidden_size <= 128
    assert config.num_attention_heads > config.num_key_value_heads
    assert config.max_position_embeddings >= 1024
    assert config.vocab_size == sample_tokenizer().get_vocab_size()
    assert {parameter.dtype for parameter in target.parameters()} == {torch.float32}
    layers = [round(1 + i * (config.num_hidden_layers - 4) / 4) for i in range(5)]
    assert len(set(layers)) == 5  # five distinct feature layers


def test_held_out_perplexity_is_the_cards(
    card: dict[str, Any], target: Any, sample_store: TokenStore
) -> None:
    """Every held-out sample by itself. Rounding alone may differ where the text is the card's own.

    Another Python has other functions. The library of 3.11.2 moved the total by 0.4 % and a bin by 0.9 %,
    those of 3.12 and 3.13 by up to 4.4 % and 14 %: the tolerance is 6 % and 20 %.
    """
    import torch

    same_text = sample_store.fingerprint == card["corpus"]["fingerprint"]
    losses: dict[int, list[tuple[float, float, int, int]]] = defaultdict(list)
    for row in sample_store.rows(held_out=True):
        ids = torch.from_numpy(sample_store.tokens(row).astype("int64"))
        supervised = torch.from_numpy(sample_store.loss_mask(row)[1:].astype(bool))
        with torch.no_grad():
            log_p = target(ids[None], use_cache=False).logits[0, :-1].double().log_softmax(-1)
        loss = -log_p.gather(1, ids[1:, None])[:, 0]
        losses[len(ids)].append(
            (loss.sum().item(), loss[supervised].sum().item(), len(loss), int(supervised.sum()))
        )
    for entry in card["held_out"]:
        low, high = entry["tokens_per_sample"]
        chosen = [sums for length in range(low, high + 1) for sums in losses[length]]
        total, total_supervised, tokens, tokens_supervised = (
            sum(column) for column in zip(*chosen, strict=True)
        )
        tolerance = 1e-3 if same_text else 0.06 if (low, high) == (16, 1024) else 0.2
        assert math.exp(total / tokens) == pytest.approx(entry["perplexity"], rel=tolerance)
        expected = pytest.approx(entry["supervised_perplexity"], rel=tolerance)
        assert math.exp(total_supervised / tokens_supervised) == expected
        if same_text:
            counts = (len(chosen), tokens, tokens_supervised)
            assert counts == (entry["samples"], entry["predicted_tokens"], entry["supervised_tokens"])


def test_card_covers_all_lengths_and_beats_counting_tokens(
    card: dict[str, Any], sample_store: TokenStore
) -> None:
    """A target worth drafting for: far below the perplexity of the best guess from token counts alone."""
    bins = [entry["tokens_per_sample"] for entry in card["held_out"]]
    assert bins == [[16, 1024], [16, 64], [65, 128], [129, 256], [257, 512], [513, 1024]]
    rows = sample_store.rows(held_out=True)
    ids = np.concatenate([sample_store.tokens(row)[1:] for row in rows])
    shares = np.bincount(ids) / len(ids)
    unigram = math.exp(-sum(share * math.log(share) for share in shares if share))
    assert card["held_out"][0]["perplexity"] < unigram / 10
