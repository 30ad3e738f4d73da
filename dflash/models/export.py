"""Drafters in folders, as others load them: z-lab's own code, SGLang and vLLM.

A folder holds config.json and model.safetensors. Servers skip keys that they do not know and read defaults
for what they do not find, without a word; here everything is checked, when writing and when reading.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dflash.data.atomic_folder import new_folder
from dflash.errors import UsageError
from dflash.models.drafter import Drafter
from dflash.models.published_config import (
    ServingFacts,
    check_complete,
    drafter_folder,
    published_config,
    read_config,
    shape_of,
)
from dflash.models.published_tensors import check_shapes, listed
from dflash.models.shape import DrafterShape

WEIGHTS = "model.safetensors"
DTYPES = {"float32": "F32", "bfloat16": "BF16"}
"""Names of torch and of config.json, with those in a safetensors header."""


def write_drafter(
    folder: Path, drafter: Drafter, facts: ServingFacts | None = None, dtype: torch.dtype = torch.float32
) -> None:
    """Write config.json and model.safetensors into ``folder``, each whole or not at all.

    Args:
        facts: of the drafter's target, from :func:`dflash.models.published_config.serving_facts`. Without
            them the folder serves :func:`read_drafter` and no one else.
        dtype: of the tensors; master weights are fp32, published drafters bf16.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = published_config(drafter.shape, facts or ServingFacts(), str(dtype).removeprefix("torch."))
    config_draft, weights_draft = (folder / f".{what}.{os.getpid()}.tmp" for what in ("config", "model"))
    config_draft.write_text(json.dumps(config, indent=2) + "\n")
    tensors = {
        name: weight.detach().to("cpu", dtype).contiguous() for name, weight in drafter.state_dict().items()
    }
    save_file(tensors, weights_draft, metadata={"format": "pt"})
    # safetensors makes files that nobody else may read; a server runs as somebody else.
    shutil.copymode(config_draft, weights_draft)
    os.replace(weights_draft, folder / WEIGHTS)
    os.replace(config_draft, folder / "config.json")


def export_drafter(out: Path, drafter: Drafter, facts: ServingFacts, dtype: torch.dtype) -> None:
    """Write a validated folder that servers load. It appears whole or not at all, and replaces nothing.

    Raises:
        UsageError: there is something at ``out``; the drafter or the facts are not what servers need.
    """
    with new_folder(out) as draft:
        write_drafter(draft, drafter, facts, dtype)
        validate_export(draft)


def validate_export(folder: Path) -> None:
    """Check all that servers would skip, guess or read as something else.

    Raises:
        UsageError: config.json lacks a key, contradicts itself or the tensors; keys are missing, too many or
            misshapen; tensors of another type than config.json says; values that are not finite; layer ids
            out of range or not ascending; a mask id that is no id of its own.
    """
    config = read_config(folder)
    shape = shape_of(config, folder)
    check_complete(config, folder)
    wanted = str(config.dtype)
    with _weights(folder) as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
        _check_shapes({name: tuple(part.get_shape()) for name, part in slices.items()}, shape, folder)
        others = [
            f"{name} ({part.get_dtype()})"
            for name, part in slices.items()
            if part.get_dtype() != DTYPES.get(wanted)
        ]
        if others:
            raise UsageError(f"{folder / WEIGHTS}: not {wanted}, as config.json says: {listed(others)}")
        for name in slices:
            _check_finite(name, file.get_tensor(name), folder)


@dataclass(frozen=True)
class TensorLine:
    """One tensor of a file, as its header says."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def parameters(self) -> int:
        return math.prod(self.shape)


def tensors_in(folder: Path) -> list[TensorLine]:
    """The tensors of a drafter's folder, in the file's order."""
    with _weights(folder) as file:
        parts = [(name, file.get_slice(name)) for name in file.keys()]  # noqa: SIM118  (not a dict)
        return [TensorLine(name, tuple(part.get_shape()), part.get_dtype()) for name, part in parts]


def read_drafter(folder: Path, device: str = "cpu") -> Drafter:
    """A drafter with fp32 master weights from a folder that we or others wrote, or from a run's.

    ``block_size`` and the rotary base may stand in either of their two places, and all keys may start with
    ``model.``, which SGLang reads as well.

    Raises:
        UsageError: no such folder; keys missing, too many or misshapen; weights that are not finite; a
            config.json that contradicts itself or asks for what is not built here.
    """
    folder = drafter_folder(folder)
    shape = shape_of(read_config(folder), folder)
    with _weights(folder) as file:
        keys = list(file.keys())
        prefix = "model." if all(key.startswith("model.") for key in keys) else ""
        found = {key.removeprefix(prefix): key for key in keys}
        _check_shapes(
            {name: tuple(file.get_slice(key).get_shape()) for name, key in found.items()}, shape, folder
        )
        tensors = {name: file.get_tensor(key).to(device, torch.float32) for name, key in found.items()}
    for name, tensor in tensors.items():
        _check_finite(name, tensor, folder)
    with torch.device("meta"):
        drafter = Drafter(shape)
    drafter.load_state_dict(tensors, assign=True)
    return drafter


def _check_shapes(found: dict[str, tuple[int, ...]], shape: DrafterShape, folder: Path) -> None:
    try:
        check_shapes(found, shape)
    except UsageError as error:
        raise UsageError(f"{folder / WEIGHTS}: {error}") from None


def _check_finite(name: str, tensor: Tensor, folder: Path) -> None:
    if not bool(torch.isfinite(tensor).all()):
        raise UsageError(f"{folder / WEIGHTS}: not all values of {name} are finite")


@contextmanager
def _weights(folder: Path) -> Iterator[Any]:
    """The open file of tensors."""
    from safetensors import SafetensorError, safe_open

    path = folder / WEIGHTS
    if not path.is_file():
        raise UsageError(f"{folder} has no {WEIGHTS}: give the folder of a drafter")
    try:
        file = safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{path} cannot be read ({error}): it may be cut short") from error
    with file:
        yield file
