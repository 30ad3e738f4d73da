"""Everything with weights, as the workers of a run load it: here, or each in a process of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from dflash.config import Config
from dflash.data.sources import target_folder
from dflash.data.store import TokenStore
from dflash.models.drafter import Drafter, TargetHead
from dflash.models.export import read_drafter
from dflash.models.identity import known_text, perplexity, refuse_untrained
from dflash.models.initialisation import initialise
from dflash.models.shape import DrafterShape
from dflash.models.starting_point import drafter_shape
from dflash.models.target import Target, load_causal_lm, target_head
from dflash.training.placement import place

Trainee = tuple[Drafter, TargetHead]
"""A drafter and what it borrows from the target."""


class Staff(Protocol):
    """Where the workers of a run get their models."""

    def target_of(self, number: int) -> Callable[[], Target]:
        """What target worker ``number`` calls to have its target."""
        ...

    def drafter_of(self, rank: int) -> Callable[[], Trainee]:
        """What drafter ``rank`` calls; all have the same weights."""
        ...


@dataclass(frozen=True)
class Models:
    """Loaded in this process: one target for each target worker, and the first drafter."""

    targets: list[Target]
    head: TargetHead
    drafter: Drafter
    perplexity: float
    """of the target on the store's known text"""

    def target_of(self, number: int) -> Callable[[], Target]:
        return lambda: self.targets[number]

    def drafter_of(self, rank: int) -> Callable[[], Trainee]:
        drafter = self.drafter if rank == 0 else copy.deepcopy(self.drafter)
        return lambda: (drafter, self.head)


@dataclass(frozen=True)
class ModelsApart:
    """To be loaded by each worker in its own process, on its own device."""

    config: Config

    def target_of(self, number: int) -> Callable[[], Target]:
        return partial(_load_target, self.config, place(self.config.pipeline).targets[number])

    def drafter_of(self, rank: int) -> Callable[[], Trainee]:
        return partial(_load_drafter, self.config, place(self.config.pipeline).drafters[rank])


def load_models(config: Config, store: TokenStore) -> Models:
    """Load the targets and a drafter: that of ``training.init``, or a fresh one.

    A fresh one's first weights depend on the seed and the target alone.

    Raises:
        UsageError: the target cannot be loaded, no drafter fits it, its attention does not run on this
            device, or the target predicts the store's samples no better than a guess.
    """
    folder, placement = target_folder(config.data), place(config.pipeline)
    shape = drafter_shape(config, folder)
    # Loading replaces parts of the library's global state, so it is done here and not in the workers.
    models = [load_causal_lm(folder, config.data.target_dtype) for _ in placement.targets]
    drafter = _new_drafter(config, shape, models[0], placement.drafters[0])
    models = [model.to(device) for model, device in zip(models, placement.targets, strict=True)]
    head = target_head(models[0])
    # While the layers that no feature needs are still there.
    found = perplexity(models[0], known_text(store))
    if not config.data.allow_untrained_target:
        refuse_untrained(found, shape.vocab_size, folder, store)
    targets = [
        Target(model, shape.target_layer_ids, torch.device(device))
        for model, device in zip(models, placement.targets, strict=True)
    ]
    return Models(targets, head, drafter, found)


def staff_for(config: Config, store: TokenStore) -> Staff:
    """The models of a run on the engine of its settings.

    Raises:
        UsageError: as :func:`load_models`; workers with processes of their own find out for themselves.
    """
    return ModelsApart(config) if place(config.pipeline).engine == "process" else load_models(config, store)


def _load_target(config: Config, device: str) -> Target:
    folder = target_folder(config.data)
    model = load_causal_lm(folder, config.data.target_dtype).to(device)
    return Target(model, drafter_shape(config, folder).target_layer_ids, torch.device(device))


def _load_drafter(config: Config, device: str) -> Trainee:
    folder = target_folder(config.data)
    model = load_causal_lm(folder, config.data.target_dtype)
    drafter = _new_drafter(config, drafter_shape(config, folder), model, device)
    head = target_head(model)
    return drafter, TargetHead(head.embedding_VH.to(device), head.head_VH.to(device))


def _new_drafter(config: Config, shape: DrafterShape, model: Any, device: str) -> Drafter:
    if config.training.init is None:
        drafter = initialise(Drafter(shape), model, config.training.seed).to(device)
    else:
        drafter = read_drafter(Path(config.training.init), device)
    return drafter.computing_as(config.drafter)
