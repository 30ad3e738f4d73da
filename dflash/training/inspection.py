"""What is looked at before a run begins: is the target trained, does the worst micro-batch fit memory."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from dflash.config import Config
from dflash.data.store import TokenStore
from dflash.errors import DflashError, StageError
from dflash.pipeline import Sender, open_engine
from dflash.training.models import Models, ModelsApart, Staff, load_models
from dflash.training.placement import Placement
from dflash.training.preflight import WorstMicroBatches, try_worst
from dflash.training.run import modules_of_workers, prepare_worker


@dataclass(frozen=True)
class Inspection:
    """What was found."""

    perplexity: float
    """of the target on the store's known text"""
    preflight: str
    """a line for a person"""


def inspected_staff(
    config: Config, store: TokenStore, worst: WorstMicroBatches, placement: Placement
) -> tuple[Staff, Inspection]:
    """The models of a run, having been looked at; with processes, in one that ends before they start.

    Raises:
        UsageError: models that cannot be loaded or do not fit, or too little memory.
    """
    if placement.engine != "process":
        models = load_models(config, store)
        return models, _inspect(models, config, store, worst)
    # What it takes, on a GPU too, is given back with its process.
    with open_engine(
        "process", on_thread_start=prepare_worker, preload=modules_of_workers(config)
    ) as pipeline:
        sender, receiver = pipeline.channel("inspection", items=1)
        pipeline.start_apart("inspection", _inspect_apart, sender, config, store, worst)
        try:
            found: Inspection = pipeline.run(receiver.receive())
        except StageError as error:
            if isinstance(error.__cause__, DflashError):
                raise error.__cause__ from error
            raise
    return ModelsApart(config), found


async def _inspect_apart(
    outbox: Sender[Inspection], config: Config, store: TokenStore, worst: WorstMicroBatches
) -> None:
    alone = msgspec.structs.replace(config.pipeline, targets=1, drafters=1)
    config = msgspec.structs.replace(config, pipeline=alone)
    await outbox.send(_inspect(load_models(config, store), config, store, worst))


def _inspect(models: Models, config: Config, store: TokenStore, worst: WorstMicroBatches) -> Inspection:
    return Inspection(models.perplexity, try_worst(models, store, config, worst))
