"""Coefficients from measured micro-batches, and how well they foretell one that they have not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dflash.errors import UsageError
from dflash.simulation.shapes import FloatArray


@dataclass(frozen=True)
class Fit:
    """Non-negative coefficients, and the relative errors of micro-batches fitted to all the others."""

    coefficients: tuple[float, ...]
    leave_one_out: tuple[float, ...]
    """predicted / measured - 1 of each"""

    @property
    def error(self) -> float:
        """Root mean square of the leave-one-out errors."""
        return float(np.sqrt(np.mean(np.square(self.leave_one_out))))

    @property
    def largest_error(self) -> float:
        return max(abs(one) for one in self.leave_one_out)


def fit(terms: FloatArray, seconds: Sequence[float] | FloatArray) -> Fit:
    """Non-negative least squares of relative errors: ``terms`` float64[n, k], n ``seconds`` above zero.

    Relative, because micro-batches of one plan differ tenfold and the small ones count as well.

    Raises:
        UsageError: no more micro-batches than coefficients, which leaves none to check them by.
    """
    measured = np.asarray(seconds, dtype=float)
    if len(measured) <= terms.shape[1]:
        raise UsageError(
            f"{len(measured)} measured micro-batches cannot give {terms.shape[1]} coefficients: measure more"
        )
    relative = terms / measured[:, None]
    scale = relative.max(axis=0)
    scale[scale == 0] = 1.0
    relative = relative / scale
    errors = [
        float(relative[left] @ _solve(np.delete(relative, left, axis=0))) - 1.0
        for left in range(len(measured))
    ]
    return Fit(tuple(float(one) for one in _solve(relative) / scale), tuple(errors))


def _solve(rows: FloatArray) -> FloatArray:
    from scipy.optimize import nnls

    found: FloatArray = nnls(rows, np.ones(len(rows)))[0]
    return found
