"""The statistics of a look, beside scipy's exact signed-rank test of the same pairs.

    pytest benchmarks/test_statistics.py

scipy gives a p-value; a look gives that, both bounds, the estimate and the least loss that would show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import scipy.stats

from dflash.bench.metrics import METRICS
from dflash.bench.statistics import SignedRanks
from dflash.bench.verdict import Question, judge

if TYPE_CHECKING:
    from numpy.typing import NDArray

PAIRS = [10, 20]


def log_ratios(pairs: int) -> NDArray[np.float64]:
    return 0.03 * np.random.default_rng(pairs).standard_normal(pairs)


def question(pairs: int) -> Question:
    rates = 10_000 * np.exp(log_ratios(pairs))
    return Question("m", "b", METRICS["tok_s"], np.full(pairs, 10_000.0), rates, 0.05, 0.02, gated=True)


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.benchmark(group="signed ranks")
def test_p_and_interval(benchmark: Any, pairs: int) -> None:
    x = log_ratios(pairs)

    def test() -> float:
        ranks = SignedRanks(x)
        ranks.interval()
        return ranks.p_below()

    assert benchmark(test) == pytest.approx(
        scipy.stats.wilcoxon(x, alternative="less", method="exact").pvalue
    )


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.benchmark(group="signed ranks")
def test_p_alone_scipy(benchmark: Any, pairs: int) -> None:
    x = log_ratios(pairs)
    benchmark(lambda: scipy.stats.wilcoxon(x, alternative="less", method="exact").pvalue)


@pytest.mark.parametrize("gates", [1, 6])
@pytest.mark.benchmark(group="a look at 20 pairs")
def test_judge(benchmark: Any, gates: int) -> None:
    asked = [question(20)] * gates
    assert len(benchmark(lambda: judge(asked, last_look=True))) == gates
