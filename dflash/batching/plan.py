"""The plan of one epoch, and the request that it answers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum
from operator import index
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from dflash.errors import PlanError, UsageError

IntArray = npt.NDArray[np.int64]
Layout = Literal["padded", "packed"]
Tail = Literal["spread", "pad", "drop"]

# Below this, rows x longest x (attention length + longest) of a micro-batch within budget fits int64.
LARGEST = 2**31 - 1

LEDGER = np.dtype([("id", "<i8"), ("tokens", "<i8"), ("reason", "<i8")])


class Reason(IntEnum):
    """Why a sample, or a part of it, is in the ledger."""

    DROPPED = 1  # longer than the token budget, left out whole
    CUT = 2  # longer than the token budget, its end cut off
    TAIL = 3  # in the micro-batches that filled no window


def ledger(ids: IntArray, tokens: IntArray | int, reason: Reason) -> npt.NDArray[np.void]:
    """Ledger entries of samples `ids`; `tokens` counts what is not trained, real tokens per sample."""
    entries = np.empty(len(ids), LEDGER)
    entries["id"], entries["tokens"], entries["reason"] = ids, tokens, reason
    return entries


@dataclass(frozen=True)
class PlanRequest:
    """What a plan is asked for.

    token_budget: most tokens of one micro-batch, padded or real as the plan's layout says.
    drafters, accumulation: M and A; a window has A x M micro-batches.
    tail: what becomes of the micro-batches that fill no window.
    attention_length: length at which a token's attention costs as much as all else, in tokens.

    Raises UsageError for a value out of range.
    """

    token_budget: int
    seed: int
    epoch: int
    drafters: int
    accumulation: int
    tail: Tail
    attention_length: int = 16_000

    def __post_init__(self) -> None:
        for name in ("token_budget", "drafters", "accumulation", "attention_length"):
            self._set_integer(name, 1, LARGEST)
        for name in ("seed", "epoch"):
            self._set_integer(name, 0, 2**64 - 1)
        if self.tail not in get_args(Tail):
            raise UsageError(f"tail={self.tail!r}: expected one of {', '.join(get_args(Tail))}")

    def _set_integer(self, name: str, least: int, most: int) -> None:
        value = getattr(self, name)
        try:
            number = index(value)
        except TypeError:
            number = -1
        if isinstance(value, bool) or not least <= number <= most:
            raise UsageError(f"{name}={value!r}: expected an integer from {least} to {most}")
        object.__setattr__(self, name, number)

    @property
    def window_size(self) -> int:
        """Micro-batches per window, A x M."""
        return self.accumulation * self.drafters

    def rng(self, stream: int) -> np.random.Generator:
        """A generator of its own for each (seed, epoch, stream); strategies take streams below 2**20."""
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, self.epoch, stream])))


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """One epoch: which samples go into which micro-batch, which micro-batches into which window.

    samples: int64[m], rows of the lengths that the strategy was given, micro-batch after micro-batch.
    batch_offsets: int64[b + 1] into samples; equal neighbours are an empty micro-batch.
    window_offsets: int64[w + 1] into the micro-batches.
    ids: int64[n], the store row of each of the strategy's n rows.
    ledger: LEDGER[k], what is not trained; its ids are store rows.

    The arrays are read-only. Raises PlanError for another dtype or shape, or an unknown layout.
    """

    samples: IntArray
    batch_offsets: IntArray
    window_offsets: IntArray
    layout: Layout
    ids: IntArray
    ledger: npt.NDArray[np.void]

    def __post_init__(self) -> None:
        if self.layout not in get_args(Layout):
            raise PlanError(f"layout={self.layout!r}: expected one of {', '.join(get_args(Layout))}")
        for name in ("samples", "batch_offsets", "window_offsets", "ids"):
            object.__setattr__(self, name, _frozen(name, getattr(self, name), np.dtype(np.int64)))
        object.__setattr__(self, "ledger", _frozen("ledger", self.ledger, LEDGER))

    @property
    def batches(self) -> int:
        """Number of micro-batches, b."""
        return len(self.batch_offsets) - 1

    @property
    def windows(self) -> int:
        """Number of windows, w."""
        return len(self.window_offsets) - 1

    def batch(self, number: int) -> IntArray:
        """The samples of micro-batch `number`: int64[rows], a view."""
        if not 0 <= number < self.batches:
            raise IndexError(f"micro-batch {number} of a plan of {self.batches}")
        return self.samples[self.batch_offsets[number] : self.batch_offsets[number + 1]]

    def window(self, number: int) -> range:
        """The micro-batches of window `number`."""
        if not 0 <= number < self.windows:
            raise IndexError(f"window {number} of a plan of {self.windows}")
        return range(int(self.window_offsets[number]), int(self.window_offsets[number + 1]))

    def digest(self) -> str:
        """SHA-256 of the whole plan, in hex: the same on every machine for the same plan."""
        sha256 = hashlib.sha256(f"dflash plan 1 {self.layout}\n".encode())
        for name in ("samples", "batch_offsets", "window_offsets", "ids"):
            array = getattr(self, name)
            sha256.update(f"{name} {len(array)}\n".encode() + array.astype("<i8").tobytes())
        sha256.update(f"ledger {len(self.ledger)}\n".encode() + self.ledger.tobytes())
        return sha256.hexdigest()


class Strategy(Protocol):
    """A pure function from lengths to a plan; its options are the fields of a frozen dataclass.

    One that fills buckets greedily may say them too: `dflash.batching.prediction.Bucketing`.
    """

    def plan(self, lengths: IntArray, request: PlanRequest) -> BatchPlan:
        """Plan one epoch of samples of these lengths (int64[n], read-only, each within the budget).

        The plan's ids are the row numbers 0..n-1, and its ledger holds none but Reason.TAIL; both are
        what `windows.build` returns.
        """
        ...


def _frozen(name: str, value: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype != dtype:
        what = f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
        kind = "int64" if dtype != LEDGER else "LEDGER"
        raise PlanError(f"BatchPlan.{name} must be a 1-D {kind} array, got {what}")
    array: npt.NDArray[Any] = value
    if array.flags.writeable:
        array = array.copy()
        array.flags.writeable = False
    return array
