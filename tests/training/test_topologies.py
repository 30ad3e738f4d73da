"""Results depend on the number of drafters, by rounding, and on nothing else of the topology.

The full product of topologies is in tests/soak.
"""

from __future__ import annotations

import pytest
from topologies import Topology, check_across_drafters, run

OF_DRAFTERS = {
    1: [Topology("thread", 3, 1, prefetch=3, depth=1), Topology("process", 2, 1)],
    2: [Topology("thread", 2, 2, prefetch=1, depth=4), Topology("process", 2, 2, prefetch=3)],
    3: [Topology("thread", 1, 3, prefetch=3, depth=2)],
}


@pytest.fixture(scope="module")
def references(small_config, tmp_path_factory):
    """One thread, no delay: a run for each number of drafters."""
    with pytest.MonkeyPatch.context() as patch:
        return {
            drafters: run(
                small_config, Topology("inline", 1, drafters), tmp_path_factory.mktemp("inline"), patch
            )
            for drafters in OF_DRAFTERS
        }


@pytest.mark.parametrize("topology", [one for several in OF_DRAFTERS.values() for one in several], ids=str)
def test_equal_to_the_last_bit_with_delays_everywhere(
    references, small_config, topology, tmp_path, monkeypatch
):
    found = run(small_config, topology, tmp_path, monkeypatch, seed=7)
    assert found.exact() == references[topology.drafters].exact()


@pytest.mark.parametrize("drafters", [2, 3])
def test_across_drafters_the_samples_anchors_and_weights_are_the_same(references, drafters):
    check_across_drafters(references[drafters], references[1])


def test_the_runs_that_are_compared_are_of_some_length(references):
    one = references[1]
    assert [window.window for window in one.windows] == [0, 1, 2, 3, 4]
    assert len({window.loss for window in one.windows}) == 5 and len(one.evaluations) == 2
    assert len({row for rows in one.rows for row in rows}) > 100
