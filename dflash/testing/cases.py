"""The lengths and requests on which a strategy has to prove itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

import numpy as np

from dflash.batching.plan import IntArray, PlanRequest, Tail

BUDGET = 64
# M and A: every M from 1 to 8, and windows of 24 micro-batches shared in every way.
SHAPES = sorted({(m, 2) for m in range(1, 9)} | {(m, 24 // m) for m in (1, 2, 3, 4, 6, 8)})
KEYS = sorted({(0, epoch) for epoch in range(4)} | {(seed, 0) for seed in range(4)} | {(1, 1)})


@dataclass(frozen=True, eq=False)
class Case:
    """Lengths, int64[n] and read-only, with what is asked for them."""

    name: str
    lengths: IntArray
    request: PlanRequest

    def __str__(self) -> str:
        asked = self.request
        return f"{self.name}, M={asked.drafters}, A={asked.accumulation}, tail={asked.tail}"


def contract_cases() -> Iterator[Case]:
    """Every kind of lengths in windows of every shape with every tail; then other seeds and epochs."""
    for name, lengths in _lengths().items():
        for tail in get_args(Tail):
            for drafters, accumulation in SHAPES:
                yield Case(name, lengths, PlanRequest(BUDGET, 0, 0, drafters, accumulation, tail))
    for seed, epoch in KEYS:
        yield varied_case(seed, epoch)


def varied_case(seed: int, epoch: int) -> Case:
    """Mixed lengths, all the same but for seed and epoch."""
    request = PlanRequest(BUDGET, seed, epoch, drafters=2, accumulation=3, tail="spread")
    return Case(f"mixed lengths, seed {seed}, epoch {epoch}", _lengths()["mixed lengths"], request)


def large_case() -> Case:
    """More than 2^31 tokens in all, in no more samples than it takes."""
    lengths = np.random.Generator(np.random.PCG64(1)).integers(1, 2**16, 70_000)
    return Case("2.3 billion tokens", _read_only(lengths), PlanRequest(2**16, 0, 0, 4, 2, "spread"))


def _lengths() -> dict[str, IntArray]:
    kinds = {
        "no samples": [],
        "one sample": [7],
        "fewer samples than A x M": [9, BUDGET, 3],
        "all equal": [7] * 100,
        "one giant": [1] * 100 + [BUDGET],
        "half longest, half shortest": [BUDGET] * 50 + [1] * 50,
        "mixed lengths": np.random.Generator(np.random.PCG64(0)).integers(1, BUDGET + 1, 300).tolist(),
    }
    return {name: _read_only(np.array(lengths, dtype=np.int64)) for name, lengths in kinds.items()}


def _read_only(lengths: IntArray) -> IntArray:
    lengths.flags.writeable = False
    return lengths
