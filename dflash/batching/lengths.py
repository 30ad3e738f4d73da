"""Lengths drawn from a distribution, for plans without data."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dflash.batching.options import construct
from dflash.batching.plan import LARGEST, IntArray
from dflash.errors import UsageError

_SEED = 0
_MOST = 10**9


def parse_lengths(text: str) -> IntArray:
    """int64[n], the lengths that `lognormal[:median=M][:sigma=S][:min=A][:max=B][:n=N]` says.

    Always the same draws: exp of normals from PCG64 of seed 0, cut to min..max, fractions dropped. The
    defaults are the reference data set: `lognormal:median=1800:sigma=0.6:min=65:max=8191:n=902087`.

    Raises UsageError for another name, an unknown option or a value out of range.
    """
    name, _, options = text.partition(":")
    if name.strip() != "lognormal":
        raise UsageError(f"lengths {text!r}: expected lognormal:median=...:sigma=...:min=...:max=...:n=...")
    return construct(f"lengths {text!r}", _Lognormal, options).draw()


@dataclass(frozen=True)
class _Lognormal:
    median: float = 1800.0
    sigma: float = 0.6
    min: int = 65
    max: int = 8191
    n: int = 902_087

    def __post_init__(self) -> None:
        if not (math.isfinite(self.median) and self.median > 0):
            raise ValueError(f"median={self.median}: expected a number above 0")
        if not (math.isfinite(self.sigma) and self.sigma >= 0):
            raise ValueError(f"sigma={self.sigma}: expected a number of at least 0")
        if not 1 <= self.min <= self.max <= LARGEST:
            raise ValueError(f"min={self.min}, max={self.max}: expected 1 <= min <= max <= {LARGEST}")
        if not 0 <= self.n <= _MOST:
            raise ValueError(f"n={self.n}: expected an integer from 0 to {_MOST}")

    def draw(self) -> IntArray:
        drawn = np.random.Generator(np.random.PCG64(_SEED)).normal(math.log(self.median), self.sigma, self.n)
        with np.errstate(over="ignore"):  # infinity is cut to max
            np.exp(drawn, out=drawn)
        return np.clip(drawn, self.min, self.max, out=drawn).astype(np.int64)
