"""The whole product of engines, targets, drafters and prefetchers, with delays everywhere."""

from __future__ import annotations

from itertools import product

import pytest
from topologies import Topology, check_across_drafters, run

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def references(small_config, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        return {
            drafters: run(
                small_config, Topology("inline", 1, drafters), tmp_path_factory.mktemp("inline"), patch
            )
            for drafters in (1, 2, 3)
        }


@pytest.mark.parametrize(
    ("engine", "targets", "prefetch", "drafters"),
    list(product(("inline", "thread", "process"), (1, 2, 3), (1, 3), (1, 2, 3))),
)
def test_results_depend_on_the_number_of_drafters_alone(
    references, small_config, tmp_path, monkeypatch, engine, targets, prefetch, drafters
):
    seed = 10 * targets + prefetch
    found = run(
        small_config, Topology(engine, targets, drafters, prefetch=prefetch), tmp_path, monkeypatch, seed
    )
    assert found.exact() == references[drafters].exact()
    if drafters > 1:
        check_across_drafters(found, references[1])
