"""What the verifications of a decoding say about a drafter.

The *length* of a verification is the number of tokens that it added to the text: the drafted tokens that the
target kept, and the one that it puts behind them (the bonus), cut where the text ends. So it is 1..B, and
tau is its mean, with the bonus, as in the DFlash paper (arXiv 2602.06036, section 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Acceptance:
    """Statistics over R responses. A response of one token needed no verification."""

    block_size: int
    lengths_R: Sequence[Int64]
    """per response int64[v]: the lengths of its verifications, each 1..B"""

    @property
    def pooled(self) -> Int64:
        """int64: the lengths of all verifications."""
        return np.concatenate([np.zeros(0, np.int64), *self.lengths_R])

    @property
    def pooled_tau(self) -> float | None:
        """Mean length over all verifications: long responses weigh more. None without a verification."""
        return float(self.pooled.mean()) if len(self.pooled) else None

    @property
    def response_taus(self) -> NDArray[np.float64]:
        """Mean length of each response that has a verification."""
        return np.array([lengths.mean() for lengths in self.lengths_R if len(lengths)], np.float64)

    @property
    def tau(self) -> float | None:
        """Mean over responses of their mean lengths, as the paper's tables have it."""
        return float(self.response_taus.mean()) if len(self.response_taus) else None

    def tau_interval(self, level: float = 0.95) -> tuple[float, float] | None:
        """Student's t interval of :attr:`tau`, responses being the replicates; None for fewer than two."""
        from scipy import stats

        taus = self.response_taus
        if len(taus) < 2:
            return None
        half = stats.t.ppf((1 + level) / 2, len(taus) - 1) * taus.std(ddof=1) / np.sqrt(len(taus))
        return float(taus.mean() - half), float(taus.mean() + half)

    @property
    def histogram_B(self) -> Int64:
        """int64[B]: verifications of length 1..B."""
        return np.bincount(self.pooled, minlength=self.block_size + 1)[1:].astype(np.int64)

    @property
    def slots_B(self) -> NDArray[np.float64]:
        """float64[B - 1]: share of verifications that reach past slot 1..B-1; their sum is pooled tau - 1."""
        longer = self.histogram_B[::-1].cumsum()[::-1][1:]
        return longer / max(1, len(self.pooled))

    @property
    def tokens(self) -> int:
        """New tokens of all responses: one from reading each prompt, the others from verifications.

        Plain decoding needs as many forwards of the target.
        """
        return len(self.lengths_R) + int(self.pooled.sum())

    @property
    def target_forwards(self) -> int:
        """One for each prompt and one for each verification."""
        return len(self.lengths_R) + len(self.pooled)

    @property
    def forwards_saved(self) -> float | None:
        """Share of plain decoding's forwards that were not needed; None without a response."""
        return 1 - self.target_forwards / self.tokens if self.tokens else None
