"""The frozen target: any causal LM of transformers in a local folder, read by hooks on its decoder layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dflash.errors import UsageError
from dflash.models import packed_attention
from dflash.models.drafter import TargetHead

_PROBE = np.array([5, 3])
"""tokens of the documents that show whether an architecture keeps packed documents apart"""
_PROBE_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
"""relative; 0.05 in half precision. A leak changes the later document by half its size or more"""


class Target:
    """A frozen target that gives the outputs of some of its decoder layers.

    feature(id) is the output of decoder layer ``id``, in the dtype of the model. The layers after the last
    one asked for are not loaded into the forward pass, as nobody reads them. Not safe for two threads: each
    worker has its own.
    """

    def __init__(self, model: Any, layer_ids: tuple[int, ...], device: torch.device) -> None:
        """
        Raises:
            UsageError: the model keeps no list of decoder layers, or fewer than the ids ask for.
        """
        self.layer_ids = layer_ids
        self.device = device
        self._body: Any = model.base_model
        self._vocabulary: int = model.get_input_embeddings().num_embeddings
        self._padded_attention: str = self._body.config._attn_implementation
        self._keeps_packed_apart = False
        layers = getattr(self._body, "layers", None)
        if not isinstance(layers, nn.ModuleList):
            raise UsageError(
                f"a {type(model).__name__} has no list of decoder layers to read features from: "
                "use a decoder such as Qwen3, Llama or Mistral"
            )
        if layer_ids[-1] >= len(layers):
            raise UsageError(f"layer {layer_ids[-1]} is not in a target of {len(layers)} layers")
        self._kept: list[Tensor | None] = [None] * len(layer_ids)
        self._rows = torch.zeros(0, dtype=torch.int64)
        for slot, layer_id in enumerate(layer_ids):
            layers[layer_id].register_forward_hook(self._keep(slot))
        self._body.layers = layers[: layer_ids[-1] + 1]

    @classmethod
    def load(
        cls, folder: Path, layer_ids: tuple[int, ...], device: str = "cpu", dtype: str = "float32"
    ) -> Target:
        """Load from a local folder. Nothing is ever downloaded.

        Raises:
            UsageError: the folder holds no causal LM that transformers can load, or not all its weights.
        """
        return cls(load_causal_lm(folder, dtype).to(device), layer_ids, torch.device(device))

    def _keep(self, slot: int) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            hidden_RSH: Tensor = output[0] if isinstance(output, tuple) else output
            # Real positions only: padding is never copied, queued or projected.
            self._kept[slot] = hidden_RSH.reshape(-1, hidden_RSH.shape[-1]).index_select(0, self._rows)

        return hook

    def features(self, input_ids_RS: NDArray[np.int64], lengths_R: NDArray[np.int64]) -> Tensor:
        """Features [T, K * H] of the real tokens of a right-padded micro-batch, documents end to end.

        No mask is given to the model: causal attention never looks right, so a row's real positions
        cannot see its padding, and without a mask the fastest causal kernel is used. A sliding window is
        the model's own affair, and it keeps to it.

        Args:
            input_ids_RS: int64[R, S].
            lengths_R: int64[R], real tokens of each row.

        Raises:
            UsageError: a token id that the target does not have.
        """
        real_RS = np.arange(input_ids_RS.shape[1]) < lengths_R[:, None]
        return self._run(input_ids_RS, np.flatnonzero(real_RS), self._padded_attention)

    def packed_features(self, input_ids_1T: NDArray[np.int64], lengths_D: NDArray[np.int64]) -> Tensor:
        """Features [T, K * H] of D documents that stand end to end in one row, blind to each other.

        Positions restart at each document. Gives the numbers of the padded layout to rounding, which is
        tried on two short documents before the first row.

        Args:
            input_ids_1T: int64[1, T].
            lengths_D: int64[D], which add up to T.

        Raises:
            UsageError: a token id that the target does not have, or an architecture in which packed
                documents see each other.
        """
        if not self._keeps_packed_apart:
            self._prove_packed_apart()
        return self._run_packed(input_ids_1T, lengths_D)

    def _prove_packed_apart(self) -> None:
        """Only attention is cut at documents. What mixes positions elsewhere, or is more than attention
        (recurrence, convolutions, attention sinks), would leak in silence.
        """
        ids = np.arange(_PROBE.sum()) % self._vocabulary
        rows = [
            self.features(ids[None, start:end], np.array([end - start])) for start, end in _bounds(_PROBE)
        ]
        alone = torch.cat(rows).double()
        try:
            packed = self._run_packed(ids[None], _PROBE).double()
        except ValueError as error:
            raise UsageError(_no_packing(type(self._body).__name__, str(error).splitlines()[0])) from error
        difference = ((packed - alone).norm() / alone.norm()).item()
        if not difference < _PROBE_TOLERANCE.get(self._body.dtype, 0.05):
            reason = f"features of packed documents are off by {difference:.1e} of their size"
            raise UsageError(_no_packing(type(self._body).__name__, reason))
        self._keeps_packed_apart = True

    def _run_packed(self, input_ids_1T: NDArray[np.int64], lengths_D: NDArray[np.int64]) -> Tensor:
        packed_attention.register()
        ends_D = np.cumsum(lengths_D)
        positions_T = np.arange(ends_D[-1]) - np.repeat(ends_D - lengths_D, lengths_D)
        bounds = torch.from_numpy(np.concatenate([[0], ends_D]))
        return self._run(
            input_ids_1T,
            np.arange(ends_D[-1]),
            packed_attention.NAME,
            position_ids=torch.from_numpy(positions_T)[None].to(self.device),
            cu_seq_lens_q=bounds,
            cu_seq_lens_k=bounds,
        )

    @torch.no_grad()
    def _run(
        self, input_ids: NDArray[np.int64], kept_T: NDArray[np.int64], attention: str, **arguments: Tensor
    ) -> Tensor:
        """``use_cache=False``: nobody reads the cache. In transformers' own attention packed documents would
        also see each other with one; ours is cut at the documents' bounds, whatever the library infers.
        """
        if input_ids.max() >= self._vocabulary:
            raise UsageError(
                f"token id {input_ids.max()} is not in the target's vocabulary of {self._vocabulary}: "
                "the store was made with another tokenizer"
            )
        if self._body.config._attn_implementation != attention:
            self._body.set_attn_implementation(attention)
        self._rows = torch.from_numpy(kept_T).to(self.device)
        self._body(input_ids=torch.from_numpy(input_ids).to(self.device), use_cache=False, **arguments)
        kept = [part for part in self._kept if part is not None]
        self._kept = [None] * len(self.layer_ids)
        return torch.cat(kept, dim=-1)


def _bounds(lengths_D: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    ends_D = np.cumsum(lengths_D)
    return zip((ends_D - lengths_D).tolist(), ends_D.tolist(), strict=True)


def _no_packing(architecture: str, reason: str) -> str:
    return f"{architecture} cannot run the packed layout ({reason}): use a strategy that pads"


def load_causal_lm(folder: Path, dtype: str = "float32") -> Any:
    """A causal LM of transformers in eval mode, frozen, from a local folder.

    Args:
        dtype: name of a floating dtype of torch.

    Raises:
        UsageError: not a model folder, an architecture that is no causal LM, weights that cannot be read,
            or weights missing that the architecture needs (a half-loaded target trains a drafter for
            nothing).
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} is no model folder: it has no config.json")
    try:
        with _silent_transformers():
            model, info = AutoModelForCausalLM.from_pretrained(
                folder, dtype=getattr(torch, dtype), local_files_only=True, output_loading_info=True
            )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise UsageError(f"cannot load a causal LM from {folder}: {_reason(error)}") from error
    named = model.config.architectures
    if named and type(model).__name__.lower() not in map(str.lower, named):
        raise UsageError(f"{folder} holds a {named[0]}, which is no causal LM: give a decoder's folder")
    missing = sorted(info["missing_keys"])
    if missing:
        raise UsageError(f"{folder} lacks {len(missing)} weights, among them {missing[0]}: save it whole")
    return model.eval().requires_grad_(False)


@contextmanager
def _silent_transformers() -> Iterator[None]:
    """Its progress bars, and its reports of many lines on what we refuse in one."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _reason(error: Exception) -> str:
    text = str(error).strip().splitlines()[0]
    if "for this kind of AutoModel" in text:
        return "its architecture is no causal LM"
    if "ignore_mismatched_sizes" in text:
        return "its weights do not have the shapes of its config.json"
    return text.rstrip(".")


def target_head(model: Any) -> TargetHead:
    """The embedding and head that the drafter borrows."""
    return TargetHead(
        embedding_VH=model.get_input_embeddings().weight.detach(),
        head_VH=model.get_output_embeddings().weight.detach(),
    )
