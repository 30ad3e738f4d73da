"""What travels through the pipeline: the work that the feed hands out, and what becomes of it."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dflash.batching.plan import Layout
from dflash.data.collate import Batch
from dflash.models.anchors import AnchorSlots
from dflash.models.features import FeatureBatch
from dflash.pipeline.slots import Filled

Purpose = Literal["train", "evaluate", "save"]


@dataclass(frozen=True)
class Work:
    """One micro-batch to be made. Its id counts from 0 over the whole run, in training order."""

    id: int
    purpose: Purpose
    """``save`` has no rows: in its turn the first drafter writes what it has become"""
    epoch: int
    window: int
    """the window it belongs to, or the number of windows trained before this evaluation"""
    layout: Layout
    closes: bool
    """whether it is its drafter's last of the window or evaluation"""
    rows_D: NDArray[np.int64]
    """store rows; an empty micro-batch has none"""
    lengths_D: NDArray[np.int64]
    """tokens of each row that are used"""
    drafter: int = 0
    """which drafter trains on it"""
    turn: int = 0
    """counts that drafter's own work from 0"""

    def __str__(self) -> str:
        if self.purpose == "save":
            return f"the checkpoint after window {self.window}"
        return f"micro-batch {self.id} ({self.purpose}, window {self.window}, {len(self.rows_D)} samples)"


@dataclass(frozen=True)
class Counts:
    """What a micro-batch or a window holds. Three kinds of tokens, never confused."""

    samples: int = 0
    real_tokens: int = 0
    padded_tokens: int = 0
    supervised_tokens: int = 0
    """positions of the loss mask"""
    covered_tokens: int = 0
    """supervised positions that at least one block is trained to predict"""
    loss_tokens: int = 0
    """labels with a nonzero weight, once per block slot"""
    anchor_slots: int = 0
    """blocks"""

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class LoadedBatch:
    """A micro-batch with its tokens and anchors."""

    work: Work
    batch: Batch
    slots: AnchorSlots
    counts: Counts


@dataclass(frozen=True)
class Shipment:
    """A target's output on its way: the features lie in a slot, the rest is small."""

    work: Work
    filled: Filled
    offsets_D: NDArray[np.int64]
    rows_D: NDArray[np.int64]
    slots: AnchorSlots
    counts: Counts
    bad_rows: NDArray[np.int64]


@dataclass(frozen=True)
class TargetOutput:
    """A micro-batch with its features; documents whose features are not finite have been taken out."""

    work: Work
    features: FeatureBatch
    counts: Counts
    bad_rows: NDArray[np.int64]
    """store rows of the documents taken out"""
