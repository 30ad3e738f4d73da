"""What tests of decoding share: small targets of several families, and drafters whose drafts are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from oracles import SMALL_SIZES
from torch import Tensor
from torch.nn import functional

from dflash.models.drafter import Drafter
from dflash.models.initialisation import initialise
from dflash.models.shape import DrafterShape

Int64 = NDArray[np.int64]

FAMILIES = ("Qwen3", "Llama", "Mistral", "Mistral with a window")


def random_target(family: str, seed: int = 0, **changes: Any) -> Any:
    """A causal LM whose greedy text is varied: a deviation of 0.02 would make it repeat itself."""
    name, _, window = family.partition(" with ")
    sizes = {**SMALL_SIZES, "initializer_range": 0.5, "tie_word_embeddings": False}
    sizes |= {"bos_token_id": None, "eos_token_id": None, **changes}
    if name == "Mistral":
        sizes["sliding_window"] = 6 if window else None
    torch.manual_seed(seed)
    config = getattr(transformers, f"{name}Config")(**sizes)
    return getattr(transformers, f"{name}ForCausalLM")(config).eval().requires_grad_(False)


def drafter_for(model: Any, *, block_size: int = 8, features: tuple[int, ...] = (1, 3, 5)) -> Drafter:
    """A fresh drafter of two layers, or as many as the target has."""
    config = model.config
    shape = DrafterShape(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        layers=min(2, config.num_hidden_layers),
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=10_000.0,
        block_size=block_size,
        mask_token_id=config.vocab_size - 1,
        target_layers=config.num_hidden_layers,
        target_layer_ids=features,
    )
    return initialise(Drafter(shape), model, seed=0)


def generate(model: Any, prompt: Int64, new_tokens: int, end_id: int | None = None) -> Int64:
    """transformers' own greedy decoding."""
    ids = torch.from_numpy(prompt)[None]
    found = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        generation_config=transformers.GenerationConfig(
            do_sample=False, max_new_tokens=new_tokens, eos_token_id=end_id, pad_token_id=0
        ),
    )
    return found[0, len(prompt) :].numpy()


def prompts(model: Any, count: int, seed: int = 0) -> list[Int64]:
    """Random ones of 1..20 tokens."""
    rng = np.random.default_rng(seed)
    vocabulary = model.config.vocab_size
    return [rng.integers(0, vocabulary, int(rng.integers(1, 21))) for _ in range(count)]


class KnownDrafts:
    """Drafts the tokens of a known text, of which only the first ``right`` of every block are right."""

    def __init__(self, text: Int64, block_size: int, vocabulary: int, right: int) -> None:
        self._text = text
        self._block_size = block_size
        self._vocabulary = vocabulary
        self._right = right
        self.known = 0
        """tokens whose features were read"""

    def read(self, features_SF: Tensor) -> None:
        self.known += len(features_SF)

    def draft(self, token: int) -> Tensor:
        assert token == self._text[self.known]
        slots = self.known + np.arange(1, self._block_size)
        tokens = self._text[np.minimum(slots, len(self._text) - 1)]
        wrong = np.arange(1, self._block_size) > self._right
        tokens = np.where(wrong, (tokens + 1) % self._vocabulary, tokens)
        return functional.one_hot(torch.from_numpy(tokens), self._vocabulary).float()
