"""A target that decodes: it reads a text piece by piece, gives logits and features, and can take back."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from dflash.errors import NonFiniteError, UsageError

_CROPPABLE = {"full_attention", "sliding_attention", "chunked_attention"}


class CachedTarget:
    """A whole target that reads a text piece by piece and can take back what it read last.

    Use it as a context manager: it reads features by hooks, which go when the block is left.

    Raises:
        UsageError: some layer keeps a state that cannot be taken back, or ``layer_ids`` are not all there.
    """

    def __init__(self, model: Any, layer_ids: Sequence[int]) -> None:
        self.model = model
        self.device: torch.device = model.device
        self._layers: nn.ModuleList = model.base_model.layers
        self._layer_ids = layer_ids
        if max(layer_ids) >= len(self._layers):
            raise UsageError(f"layer {max(layer_ids)} is not in a target of {len(self._layers)} layers")
        others = set(getattr(model.config, "layer_types", None) or ()) - _CROPPABLE
        if others:
            raise _not_croppable(f"layers of {', '.join(sorted(others))}")
        # The argument's name changed within version 5 of transformers.
        arguments = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in arguments else "past_key_values"
        self._outputs: dict[int, Tensor] = {}
        self._hooks: list[Any] = []
        self.restart()

    def __enter__(self) -> Self:
        for layer_id in self._layer_ids:
            self._hooks.append(self._layers[layer_id].register_forward_hook(self._keep(layer_id)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    def restart(self) -> None:
        """Forget the text."""
        from transformers import DynamicCache

        # Without a config, also layers with a sliding window keep all they read, so that it can be cropped;
        # the window is then the mask's affair.
        self._cache: Any = DynamicCache()

    @property
    def length(self) -> int:
        """Tokens of the text that stand in the cache."""
        return int(self._cache.get_seq_length()) if len(self._cache.layers) else 0

    @torch.no_grad()
    def read(self, token_S: Tensor, *, logits: int) -> tuple[Tensor, Tensor]:
        """Read S more tokens (int64[S]); the logits [n, V] of the last ``logits``, and features [S, K * H].

        The feature of layer i is the output of decoder layer i, before anything that comes after it.

        Raises:
            UsageError: some layer keeps no keys and values.
            NonFiniteError: the logits are not numbers, so that no token is the most likely one.
        """
        before = self.length
        output = self.model(
            input_ids=token_S[None],
            use_cache=True,
            logits_to_keep=logits,
            **{self._cache_argument: self._cache},
        )
        held = {layer.get_seq_length() for layer in self._cache.layers}
        if len(self._cache.layers) != len(self._layers) or held != {before + len(token_S)}:
            raise _not_croppable("layers that keep no keys and values")
        if bool(output.logits.isnan().any()):
            raise NonFiniteError(f"the target's logits are not numbers within the first {self.length} tokens")
        features = torch.cat([self._outputs.pop(layer_id)[0] for layer_id in self._layer_ids], dim=-1)
        return output.logits[0], features

    def take_back(self, count: int) -> None:
        """Crop the last ``count`` tokens from the cache."""
        self._cache.crop(-count)

    def _keep(self, layer_id: int) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            self._outputs[layer_id] = output[0] if isinstance(output, tuple) else output

        return hook


def end_ids(model: Any) -> frozenset[int]:
    """The ids at which a target's text ends, as its generation settings say, or else its config."""
    found = getattr(model.generation_config, "eos_token_id", None)
    if found is None:
        found = getattr(model.config, "eos_token_id", None)
    return frozenset() if found is None else frozenset([found] if isinstance(found, int) else found)


def _not_croppable(what: str) -> UsageError:
    return UsageError(
        f"this target has {what}: what it has read cannot be taken back, so it cannot verify drafts"
    )
