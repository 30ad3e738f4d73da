"""The frozen target: any causal LM of transformers in a local folder, read by hooks on its decoder layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dflash.errors import UsageError
from dflash.models import packed_attention
from dflash.models.drafter import TargetHead


class Target:
    """A frozen target that gives the outputs of some of its decoder layers.

    feature(id) is the output of decoder layer ``id``. The layers after the last one asked for are not
    loaded into the forward pass, as nobody reads them. Not safe for two threads: each worker has its own.
    """

    def __init__(self, model: Any, layer_ids: tuple[int, ...], device: torch.device) -> None:
        self.layer_ids = layer_ids
        self.device = device
        self._body: Any = model.base_model
        self._vocabulary: int = model.get_input_embeddings().num_embeddings
        self._padded_attention: str = self._body.config._attn_implementation
        layers: nn.ModuleList = self._body.layers
        if layer_ids[-1] >= len(layers):
            raise UsageError(f"layer {layer_ids[-1]} is not in a target of {len(layers)} layers")
        self._kept: list[Tensor | None] = [None] * len(layer_ids)
        self._rows = torch.zeros(0, dtype=torch.int64)
        for slot, layer_id in enumerate(layer_ids):
            layers[layer_id].register_forward_hook(self._keep(slot))
        self._body.layers = layers[: layer_ids[-1] + 1]

    @classmethod
    def load(cls, folder: Path, layer_ids: tuple[int, ...], device: str = "cpu") -> Target:
        """Load from a local folder in fp32. Nothing is ever downloaded.

        Raises:
            UsageError: the folder holds no causal LM that transformers can load, or not all its weights.
        """
        return cls(load_causal_lm(folder).to(device), layer_ids, torch.device(device))

    def _keep(self, slot: int) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            hidden_RSH: Tensor = output[0] if isinstance(output, tuple) else output
            # Real positions only: padding is never copied, queued or projected.
            self._kept[slot] = hidden_RSH.reshape(-1, hidden_RSH.shape[-1]).index_select(0, self._rows)

        return hook

    def features(self, input_ids_RS: NDArray[np.int64], lengths_R: NDArray[np.int64]) -> Tensor:
        """Features [T, K * H] of the real tokens of a right-padded micro-batch, documents end to end.

        No mask is given to the model: causal attention never looks right, so a row's real positions
        cannot see its padding, and without a mask the fastest causal kernel is used.

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

        Positions restart at each document. Gives the numbers of the padded layout to rounding.

        Args:
            input_ids_1T: int64[1, T].
            lengths_D: int64[D], which add up to T.

        Raises:
            UsageError: a token id that the target does not have, or attention that cannot be cut.
        """
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
        """``use_cache=False``: a cache is built for nothing, and packed documents leak through it."""
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


def load_causal_lm(folder: Path) -> Any:
    """A causal LM of transformers in eval mode, frozen, fp32, from a local folder.

    Raises:
        UsageError: not a model folder, or weights that the architecture needs are missing from it (a
            half-loaded target trains a drafter for nothing).
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()

    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} is no model folder: it has no config.json")
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(f"cannot load a causal LM from {folder}: {reason}") from error
    missing = sorted(info["missing_keys"])
    if missing:
        raise UsageError(f"{folder} lacks {len(missing)} weights, among them {missing[0]}: save it whole")
    return model.eval().requires_grad_(False)


def target_head(model: Any) -> TargetHead:
    """The embedding and head that the drafter borrows."""
    return TargetHead(
        embedding_VH=model.get_input_embeddings().weight.detach(),
        head_VH=model.get_output_embeddings().weight.detach(),
    )
