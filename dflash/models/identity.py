"""Which target a drafter was trained for, and whether that target knows anything at all."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from dflash.data.store import TokenStore
from dflash.errors import UsageError
from dflash.models.shape import read_json

Documents = Sequence[NDArray[np.int64]]

_DOCUMENTS, _TOKENS = 8, 64
"""of the known text, and the most of each"""
_MOST_OF_A_GUESS = 0.5
"""Share of the vocabulary's size at which a perplexity tells of no training. Random weights are at 1 and
above, whatever their deviation; so are trained ones with another tokenizer's ids. The smallest targets that
are of use are at a hundredth."""


@dataclass(frozen=True, kw_only=True)
class TargetIdentity:
    """What is recorded of a target beside a run's results."""

    architecture: str
    layers: int
    hidden_size: int
    vocabulary: int
    config_hash: str
    """SHA-256 (hex) over config.json with its keys in order"""
    weight_hash: str
    """SHA-256 (hex) over the names and bytes of the weight files"""
    perplexity: float | None
    """on the known text of the store, where a guess has the vocabulary's size; None if it is not finite"""


def identify(folder: Path, perplexity: float) -> TargetIdentity:
    """The identity of the target in ``folder``. Reads every byte of its weights once: seconds for gigabytes.

    Raises:
        UsageError: its config.json cannot be read.
    """
    config = read_json(folder / "config.json")
    missing = [key for key in ("num_hidden_layers", "hidden_size", "vocab_size") if key not in config]
    if missing:
        raise UsageError(f"{folder}/config.json has no {missing[0]!r}: it is no decoder that a drafter fits")
    canonical = json.dumps(config, sort_keys=True).encode()
    return TargetIdentity(
        architecture=(config.get("architectures") or [config["model_type"]])[0],
        layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        vocabulary=config["vocab_size"],
        config_hash=hashlib.sha256(canonical).hexdigest(),
        weight_hash=_hash_weights(folder),
        perplexity=perplexity if math.isfinite(perplexity) else None,
    )


def _hash_weights(folder: Path) -> str:
    paths = sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")])
    digest = hashlib.sha256()
    with ThreadPoolExecutor() as pool:
        for path, content in zip(paths, pool.map(_hash_file, paths), strict=True):
            digest.update(path.name.encode() + content)
    return digest.hexdigest()


def _hash_file(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def known_text(store: TokenStore) -> list[NDArray[np.int64]]:
    """First tokens of a few samples, the same for every run on a store; held-out ones if there are any."""
    held_out = store.rows(held_out=True)
    rows = held_out if len(held_out) else store.rows(held_out=False)
    rows = rows[store.lengths[rows] > 1]
    chosen = rows[:: max(1, len(rows) // _DOCUMENTS)][:_DOCUMENTS]
    return [store.tokens(row)[:_TOKENS].astype(np.int64) for row in chosen]


@torch.no_grad()
def perplexity(model: Any, documents: Documents) -> float:
    """``exp`` of the mean negative log-likelihood of each token after a document's first; NaN for no token.

    Args:
        model: a whole causal LM of transformers, on any device.

    Raises:
        UsageError: a token id that the model does not have.
    """
    vocabulary = model.get_input_embeddings().num_embeddings
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for document in documents:
        if document.max() >= vocabulary:
            raise UsageError(
                f"token id {document.max()} of the store is not in the target's vocabulary of {vocabulary}: "
                "prepare the store with the target's own tokenizer"
            )
        ids_1S = torch.from_numpy(document)[None].to(model.device)
        logits_SV = model(input_ids=ids_1S, use_cache=False).logits[0, :-1].float()
        total += functional.cross_entropy(logits_SV, ids_1S[0, 1:], reduction="sum").double().cpu()
        tokens += len(document) - 1
    return (total / tokens).exp().item()


def refuse_untrained(found: float, vocabulary: int, folder: Path, store: TokenStore) -> None:
    """Raise UsageError where a perplexity on the store's known text is that of a guess.

    A drafter of such a target trains without any error, and its loss stands still.
    """
    if not found < _MOST_OF_A_GUESS * vocabulary:
        raise UsageError(
            f"{folder} predicts the samples of {store.path} no better than a guess (perplexity {found:,.0f}, "
            f"vocabulary {vocabulary:,}): its weights are random or half loaded, or the store was made with "
            "another tokenizer; data.allow_untrained_target=true admits it for tests of speed"
        )
