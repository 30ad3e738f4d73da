"""The trainer's own stages, one at a time and outside the pipeline, to be measured.

All that calibration knows of the models and the trainer is here.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch

from dflash.batching.plan import IntArray, Layout
from dflash.config import Config
from dflash.data.sources import open_store
from dflash.data.store import TokenStore
from dflash.memory import keep_freed_memory
from dflash.models.anchors import valid_positions
from dflash.models.target import Target
from dflash.pipeline.stages import load, read_features
from dflash.pipeline.work import LoadedBatch, TargetOutput
from dflash.simulation.shapes import AnchorRule, BatchShapes
from dflash.training.models import load_models
from dflash.training.schedule import Window, in_training_order
from dflash.training.step import DrafterStep

_NONE = np.zeros(0, dtype=np.int64)


@dataclass
class Workbench:
    """A store, a target and a drafter's step, as a trial has them."""

    config: Config
    store: TokenStore
    target: Target
    step: DrafterStep

    @classmethod
    def open(cls, config: Config) -> Workbench:
        """Load what ``config`` names; raises UsageError where a run would."""
        torch.set_num_threads(1)
        keep_freed_memory()
        store = open_store(config.data)
        models = load_models(config, store)
        # Gradient diversity is measured in every trial, and predictions are held against trials.
        step = DrafterStep(models.drafter, models.head, config, total_windows=10_000, diversity=True)
        return cls(config, store, models.targets[0], step)

    def load(self, rows: IntArray, lengths: IntArray, layout: Layout) -> LoadedBatch:
        """What a prefetch worker does."""
        window = Window(0, layout, [(rows, lengths), (_NONE, _NONE)])
        work, _ = in_training_order([window], [], [])
        return load(work, self.store, self.config.drafter, self.config.training.seed)

    def features(self, loaded: LoadedBatch) -> TargetOutput:
        """What a target does."""
        output = read_features(loaded, self.target)
        self._settle()
        return output

    def train(self, output: TargetOutput) -> None:
        """What a drafter does with a micro-batch that closes no window."""
        self.step.add(output)
        self._settle()

    def commit(self, layout: Layout = "padded") -> None:
        """What a drafter does at the end of a window: an empty micro-batch closes it."""
        work = list(in_training_order([Window(0, layout, [(_NONE, _NONE)])], [], []))[-1]
        output = read_features(load(work, self.store, self.config.drafter, 0), self.target)
        # One drafter alone waits for nobody, so its step ends at once.
        with suppress(StopIteration):
            self.step(output).send(None)
        self._settle()

    def shares(self, rows: IntArray) -> tuple[float, float]:
        """The supervised and the label share of these samples, see ``AnchorRule``.

        The first is such that the rule gives as many valid positions as the samples have, the second such
        that it then gives as many labels.
        """
        masks = [self.store.sample(row)[1] for row in rows.tolist()]
        valid = sum(len(valid_positions(mask)) + 1 for mask in masks)
        lengths = self.store.lengths[rows]
        settings = self.config.drafter
        loaded = self.load(rows, lengths, "packed")
        anchors = np.bincount(loaded.slots.document_N, minlength=len(rows))
        rule = AnchorRule(settings.max_anchors, settings.anchor_stride, settings.block_size)
        expected = float(rule.labels(lengths, anchors).sum())
        return valid / int(lengths.sum()), loaded.counts.loss_tokens / expected

    def _settle(self) -> None:
        if self.target.device.type == "cuda":
            torch.cuda.synchronize(self.target.device)


def shapes_of(batches: list[LoadedBatch]) -> BatchShapes:
    """Of micro-batches of one layout, as they are and not as a rule has them."""
    layout = batches[0].batch.layout
    lengths = [one.batch.lengths for one in batches]
    longest = [int(one.max(initial=0)) for one in lengths]
    anchors = [np.bincount(one.slots.document_N, minlength=len(one.batch.rows)) for one in batches]
    squares = [
        int((length * length).sum()) if layout == "packed" else len(length) * most * most
        for length, most in zip(lengths, longest, strict=True)
    ]
    return BatchShapes(
        layout=layout,
        real_tokens=np.array([length.sum() for length in lengths]),
        target_tokens=np.array([one.batch.input_ids.size for one in batches]),
        target_squares=np.array(squares),
        anchors=np.array([one.sum() for one in anchors]),
        labels=np.array([float(one.counts.loss_tokens) for one in batches]),
        anchor_context=np.array([int(a @ length) for a, length in zip(anchors, lengths, strict=True)]),
    )
