"""The stages of training: feed -> prefetch -> target -> drafter.

Each is one function over channel ends; the engine decides what drives it. In-flight work is bounded by
slots: the feed takes one for every micro-batch, in training order, before it hands the micro-batch out,
and the drafter gives it back. Were a slot taken later, by whichever target finishes first, then later
micro-batches could hold them all while the drafter waits for an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from dflash.config import DrafterSettings
from dflash.data.collate import Batch, collate_packed, collate_padded
from dflash.data.store import TokenStore
from dflash.models.anchors import AnchorSlots, build_slots, choose_anchors
from dflash.models.features import FeatureBatch, drop_non_finite
from dflash.models.target import Target
from dflash.pipeline.channel import Receiver, Sender
from dflash.pipeline.ordering import in_order
from dflash.pipeline.slots import Slots
from dflash.pipeline.stage import working_on
from dflash.pipeline.work import Counts, LoadedBatch, Shipment, TargetOutput, Work

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class Step(Protocol[Result_co]):
    """What a drafter does with the work that comes to it."""

    device: torch.device

    async def __call__(self, output: TargetOutput) -> Result_co | None:
        """Take a target's output; a result where it completes one."""
        ...

    def close(self) -> None:
        """Finish what is under way beside the work. Raises what went wrong there."""
        ...


Others = tuple[Receiver[Any], list[Sender[Any]]] | None
"""How a drafter hears the other ones of its process, and speaks to each; None where there are none."""


async def feed(work: Iterable[Work], slots: list[Sender[int]], outbox: Sender[Work]) -> None:
    """Hand out the work in its order, a slot of its drafter reserved for each."""
    for item in work:
        await slots[item.drafter].send(item.turn)
        await outbox.send(item)


async def prefetch(
    inbox: Receiver[Work],
    outbox: Sender[LoadedBatch],
    store: TokenStore,
    settings: DrafterSettings,
    seed: int,
) -> None:
    """Read tokens, draw anchors."""
    async for work in inbox:
        with working_on(work):
            loaded = load(work, store, settings, seed)
        await outbox.send(loaded)


async def run_target(
    inbox: Receiver[LoadedBatch],
    outboxes: list[Sender[Shipment]],
    slots: list[Slots],
    load_target: Callable[[], Target],
) -> None:
    """Run the frozen target, keep the features of real tokens, send them to the drafter they are for."""
    target = load_target()
    async for loaded in inbox:
        with working_on(loaded.work):
            output = read_features(loaded, target)
            shipment = ship(output, slots[loaded.work.drafter])
        await outboxes[loaded.work.drafter].send(shipment, nbytes=output.features.nbytes)


async def run_drafter(
    inbox: Receiver[Shipment],
    reserved: Receiver[int],
    outbox: Sender[Result],
    others: Others,
    slots: Slots,
    load_step: Callable[[Others], Step[Result]],
) -> None:
    """Train in plan order, whatever the order in which the targets finish."""
    step = load_step(others)
    try:
        async for shipment in in_order(inbox, key=lambda shipment: shipment.work.turn):
            with working_on(shipment.work):
                result = await step(unship(shipment, slots, step.device))
            await reserved.receive()
            if result is not None:
                await outbox.send(result)
    finally:
        step.close()


def ship(output: TargetOutput, slots: Slots) -> Shipment:
    """Put the features into their slot."""
    features = output.features
    filled = slots.fill(output.work.turn, features.features_TF)
    return Shipment(
        work=output.work,
        filled=filled,
        offsets_D=features.offsets_D,
        rows_D=features.rows_D,
        slots=features.slots,
        counts=output.counts,
        bad_rows=output.bad_rows,
    )


def unship(shipment: Shipment, slots: Slots, device: torch.device) -> TargetOutput:
    """What was shipped; valid until its slot is freed."""
    features_TF = slots.read(shipment.filled, device)
    features = FeatureBatch(features_TF, shipment.offsets_D, shipment.rows_D, shipment.slots)
    return TargetOutput(shipment.work, features, shipment.counts, shipment.bad_rows)


def load(work: Work, store: TokenStore, settings: DrafterSettings, seed: int) -> LoadedBatch:
    """The tokens of a micro-batch, and its anchors, which depend on (seed, epoch, store row) alone."""
    collate = collate_packed if work.layout == "packed" else collate_padded
    batch = collate(store, work.rows_D, work.lengths_D)
    documents = list(batch.documents())
    masks = [mask for _, mask in documents]
    anchors = [
        choose_anchors(
            mask,
            seed=seed,
            epoch=work.epoch,
            row=row,
            max_anchors=settings.max_anchors,
            stride=settings.anchor_stride,
        )
        for mask, row in zip(masks, work.rows_D.tolist(), strict=True)
    ]
    tokens = [ids for ids, _ in documents]
    slots = build_slots(tokens, masks, anchors, block_size=settings.block_size)
    return LoadedBatch(work, batch, slots, _count(batch, slots))


def read_features(loaded: LoadedBatch, target: Target) -> TargetOutput:
    """The features of a micro-batch; an empty one needs no forward pass."""
    batch = loaded.batch
    offsets_D = np.concatenate([[0], np.cumsum(batch.lengths)]).astype(np.int64)
    if not len(batch.rows):
        features_TF = torch.zeros(0, 0, device=target.device)
    elif batch.layout == "packed":
        features_TF = target.packed_features(batch.input_ids, batch.lengths)
    else:
        features_TF = target.features(batch.input_ids, batch.lengths)
    features, bad_rows = drop_non_finite(FeatureBatch(features_TF, offsets_D, batch.rows, loaded.slots))
    counts = loaded.counts
    if len(bad_rows):
        # Only what is trained counts as loss tokens; the documents were read all the same.
        counts = replace(counts, **_trained(features.slots))
    return TargetOutput(loaded.work, features, counts, bad_rows)


def _count(batch: Batch, slots: AnchorSlots) -> Counts:
    return Counts(
        samples=len(batch.rows),
        real_tokens=int(batch.lengths.sum()),
        padded_tokens=batch.input_ids.size,
        supervised_tokens=int(batch.loss_mask.sum(dtype=np.int64)),
        **_trained(slots),
    )


def _trained(slots: AnchorSlots) -> dict[str, int]:
    labelled = slots.labelled_NB
    position_NB = slots.position_N[:, None] + np.arange(labelled.shape[1])
    # No position reaches 2^32, so a document's positions are numbers of their own.
    place_NB = (slots.document_N[:, None] << 32) + position_NB
    return {
        "covered_tokens": len(np.unique(place_NB[labelled])),
        "loss_tokens": int(labelled.sum()),
        "anchor_slots": len(slots),
    }
