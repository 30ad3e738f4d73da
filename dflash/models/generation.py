"""A target's own continuations of many prompts: batched, greedy or sampled, by transformers' ``generate``.

A continuation is a function of its prompt and its key alone, up to ties of logits that the rounding of
another batch decides: sampling draws from a stream of its own for each prompt, never from one of the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dflash.errors import UsageError
from dflash.models.cached_target import end_ids
from dflash.models.target import load_causal_lm

Ids = list[int]


@dataclass(frozen=True)
class Decoding:
    """How continuations are made: ``temperature`` 0 is greedy; ``batch_size`` prompts run at once."""

    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0
    batch_size: int = 64


class Continuer:
    """Continues prompts.

    ``positions``   the most tokens of a prompt with its continuation, None if the model sets no limit
    ``end_ids``     a continuation ends with the first of these, which is kept
    """

    def __init__(self, model: Any, decoding: Decoding, more_end_ids: Iterable[int] = ()) -> None:
        """
        Args:
            model: a whole causal LM of transformers.
            more_end_ids: end tokens beside those of the model, as servers take the tokenizer's.
        """
        from transformers import GenerationConfig

        self._model = model
        self._decoding = decoding
        self.end_ids = end_ids(model) | frozenset(more_end_ids)
        self.positions: int | None = getattr(model.config, "max_position_embeddings", None)
        self._vocabulary: int = model.get_input_embeddings().num_embeddings
        # What a model's generation_config.json recommends (penalties, top-p) would be added to ours, and the
        # text would not be what speculative decoding reproduces.
        model.generation_config = GenerationConfig()
        self._config = GenerationConfig(
            max_new_tokens=decoding.max_new_tokens,
            do_sample=False,
            eos_token_id=sorted(self.end_ids) or None,
            pad_token_id=min(self.end_ids, default=0),
        )

    @classmethod
    def load(
        cls,
        folder: Path,
        decoding: Decoding,
        more_end_ids: Iterable[int] = (),
        *,
        device: str = "cpu",
        dtype: str = "float32",
    ) -> Continuer:
        """Load the target from a local folder.

        Raises:
            UsageError: the folder holds no causal LM, or there is no such device.
        """
        model = load_causal_lm(folder, dtype)
        try:
            model = model.to(device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            raise UsageError(f"cannot use the device {device} ({reason})") from error
        return cls(model, decoding, more_end_ids)

    def __call__(self, prompts: Sequence[Ids], keys: Sequence[tuple[int, ...]]) -> list[Ids]:
        """The continuation of each prompt, of one token at least.

        Args:
            prompts: of at least one token each.
            keys: of each prompt, for sampling; with the seed it decides what is drawn.

        Raises:
            UsageError: a token id that the target does not have, or not enough memory for a batch.
        """
        highest = max((max(prompt) for prompt in prompts), default=0)
        if highest >= self._vocabulary:
            raise UsageError(
                f"token id {highest} is not in the target's vocabulary of {self._vocabulary}: "
                "give the tokenizer that belongs to the target"
            )
        found: list[Ids] = [[] for _ in prompts]
        by_length = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        size = self._decoding.batch_size
        for start in range(0, len(by_length), size):
            batch = by_length[start : start + size]
            new = self._continue([prompts[index] for index in batch], [keys[index] for index in batch])
            for index, continuation in zip(batch, new, strict=True):
                found[index] = continuation
        return found

    @torch.no_grad()
    def _continue(self, prompts: list[Ids], keys: list[tuple[int, ...]]) -> list[Ids]:
        longest = max(map(len, prompts))
        ids_RS = torch.zeros(len(prompts), longest, dtype=torch.int64)
        mask_RS = torch.zeros_like(ids_RS)
        for row, prompt in enumerate(prompts):  # on the left, so that all go on at one position
            ids_RS[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask_RS[row, longest - len(prompt) :] = 1
        device = self._model.device
        try:
            output_RS: Tensor = self._model.generate(
                input_ids=ids_RS.to(device),
                attention_mask=mask_RS.to(device),
                generation_config=self._config,
                logits_processor=self._processors(longest, keys),
            )
        except torch.OutOfMemoryError as error:
            raise UsageError(
                f"{device} has no memory for {len(prompts)} continuations of prompts of {longest} tokens: "
                "use a smaller --batch-size"
            ) from error
        return [self._ended(row) for row in output_RS[:, longest:].tolist()]

    def _processors(self, longest: int, keys: list[tuple[int, ...]]) -> list[Any]:
        if not self._decoding.temperature:
            return []
        draws_RT = np.stack(
            [_stream(self._decoding.seed, key).random(self._decoding.max_new_tokens) for key in keys]
        )
        return [
            _Sampling(torch.from_numpy(draws_RT).to(self._model.device), self._decoding.temperature, longest)
        ]

    def _ended(self, tokens: Ids) -> Ids:
        """Without what was padded behind the first end token."""
        end = next((index for index, token in enumerate(tokens) if token in self.end_ids), len(tokens))
        return tokens[: end + 1]


class _Sampling:
    """Leaves one token of each row, drawn from its softmax by inversion of one uniform number.

    ``draws_RT`` fp64[R, T]: the numbers of each row for its T new tokens.
    """

    def __init__(self, draws_RT: Tensor, temperature: float, prompt_tokens: int) -> None:
        self._draws_RT = draws_RT
        self._temperature = temperature
        self._prompt_tokens = prompt_tokens

    def __call__(self, input_ids: Tensor, scores_RV: Tensor) -> Tensor:
        draw_R = self._draws_RT[:, input_ids.shape[1] - self._prompt_tokens]
        # In fp64: a hundred thousand terms of fp32 lose the tail.
        sums_RV = (scores_RV.double() / self._temperature).softmax(-1).cumsum(-1)
        drawn_R1 = torch.searchsorted(sums_RV, (draw_R * sums_RV[:, -1])[:, None], right=True)
        return torch.full_like(scores_RV, -torch.inf).scatter_(-1, drawn_R1, 0.0)


def _stream(seed: int, key: tuple[int, ...]) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *key])))
