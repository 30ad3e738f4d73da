"""Writing a drafter as others load it: z-lab's own code, SGLang and vLLM."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dflash.models.drafter import Drafter
from dflash.models.shape import DrafterShape


def write_drafter(folder: Path, drafter: Drafter) -> None:
    """Write config.json and model.safetensors into ``folder``, each whole or not at all.

    The tensors keep their training precision, fp32.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: weight.detach().cpu().contiguous() for name, weight in drafter.state_dict().items()}
    draft = folder / f".model.{os.getpid()}.tmp"
    save_file(tensors, draft, metadata={"format": "pt"})
    os.replace(draft, folder / "model.safetensors")
    draft = folder / f".config.{os.getpid()}.tmp"
    draft.write_text(json.dumps(published_config(drafter.shape), indent=2) + "\n")
    os.replace(draft, folder / "config.json")


def published_config(shape: DrafterShape) -> dict[str, Any]:
    """config.json with the keys of the released checkpoints.

    ``block_size`` stands in both places where loaders look for it, and the layer ids are explicit, as
    loaders differ in their defaults.
    """
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": shape.block_size,
        "dflash_config": {
            "block_size": shape.block_size,
            "mask_token_id": shape.mask_token_id,
            "target_layer_ids": list(shape.target_layer_ids),
        },
        "num_target_layers": shape.target_layers,
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "layer_types": ["full_attention"] * shape.layers,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "rms_norm_eps": shape.rms_norm_eps,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "vocab_size": shape.vocab_size,
        "dtype": "float32",
    }
