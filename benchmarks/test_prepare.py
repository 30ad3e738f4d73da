"""Documents to samples in one process, beside what the tokenizer alone needs for them.

    pytest benchmarks/test_prepare.py

The tokenizer's own batch call is the least that can be done: ids, without ends, masks, rules or a store.
"""

from __future__ import annotations

import json
import os
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from dflash.data.corpus import library_functions
from dflash.data.documents import Fields
from dflash.data.inputs import open_inputs, read_rows
from dflash.data.prepare import Counts, prepare
from dflash.data.rules import Rules
from dflash.data.sample import sample_tokenizer
from dflash.data.store import TokenStore
from dflash.data.tokenisation import Done, Tokenisation, Treatment
from dflash.data.tokenizer import TextTokenizer
from dflash.models.generation import Continuer, Decoding
from dflash.models.target import load_causal_lm

DOCUMENTS = 3000


class Silent:
    def advanced(self, done: Done, counts: Counts, share: float) -> None:
        pass


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Functions of the standard library, a line of JSON for each."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    path = tmp_path_factory.mktemp("documents") / "documents.jsonl"
    functions = islice(library_functions(), DOCUMENTS)
    path.write_text("".join(json.dumps({"text": f.prompt + f.response}) + "\n" for f in functions))
    return path


@pytest.mark.benchmark(group="documents")
def test_tokenizer_alone(benchmark: Any, documents: Path) -> None:
    texts = [json.loads(line)["text"] for line in documents.read_text().splitlines()]
    tokenizer = sample_tokenizer()
    encodings = benchmark(lambda: tokenizer.encode_batch(texts))
    assert len(encodings) == DOCUMENTS
    benchmark.extra_info["documents"] = DOCUMENTS


@pytest.mark.benchmark(group="documents")
def test_prepare_documents(benchmark: Any, documents: Path, tmp_path: Path) -> None:
    job = Tokenisation(TextTokenizer.load("sample"), Treatment(), Rules(mask_id=2))
    sources = open_inputs([str(documents)], Fields())
    benchmark(lambda: prepare(sources, job, tmp_path / "s.arrow", {}, Silent()))
    assert len(TokenStore.open(tmp_path / "s.arrow")) > 0.9 * DOCUMENTS
    benchmark.extra_info["documents"] = DOCUMENTS


@pytest.mark.benchmark(group="documents")
def test_read_documents(benchmark: Any, documents: Path) -> None:
    sources = open_inputs([str(documents)], Fields())
    assert benchmark(lambda: sum(1 for _ in read_rows(sources))) == DOCUMENTS


@pytest.mark.benchmark(group="continuations")
@pytest.mark.parametrize("batch_size", [8, 64])
def test_greedy_continuations(benchmark: Any, batch_size: int) -> None:
    """Of the sample target, 32 tokens each; one end token in a batch saves nothing before the last one."""
    import torch

    from dflash.data.sample import sample_target_dir

    torch.set_num_threads(1)
    continuer = Continuer(load_causal_lm(sample_target_dir()), Decoding(32, batch_size=batch_size))
    prompts = [[40 + i, 50, 60, 70] for i in range(64)]
    keys = [(i,) for i in range(64)]
    found = benchmark.pedantic(continuer, (prompts, keys), rounds=3)
    benchmark.extra_info["tokens"] = sum(map(len, found))
