from __future__ import annotations

import numpy as np

from dflash.batching.plan import PlanRequest
from dflash.batching.planning import make_plan
from dflash_plugins.first_fit import FirstFit

LENGTHS = np.random.default_rng(0).integers(1, 100, 500)
REQUEST = PlanRequest(250, 3, 1, 2, 2, "pad")


def test_first_fit_over_the_whole_shuffle() -> None:
    plan, _ = make_plan(FirstFit(), LENGTHS, REQUEST)
    assert plan.layout == "packed"
    batches: list[list[int]] = []
    for sample in REQUEST.rng(0).permutation(500).tolist():
        fits = (batch for batch in batches if LENGTHS[batch].sum() + LENGTHS[sample] <= 250)
        found = next(fits, None)
        if found is None:
            batches.append(found := [])
        found.append(sample)
    planned = [plan.batch(number).tolist() for number in range(plan.batches)]
    assert sorted(batch for batch in planned if batch) == sorted(batches)
    assert [batch for batch in planned if batch] != batches  # but shuffled: the last opened are the emptiest
