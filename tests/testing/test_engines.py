"""The conformance suite of engines, over those that there are and over some that break their promises."""

from __future__ import annotations

from functools import partial

import pytest

from dflash.errors import DflashError
from dflash.pipeline import ENGINES, Pipeline, open_engine
from dflash.pipeline.engines.thread import ThreadPipeline
from dflash.testing.engines import ENGINE_CHECKS, everything_arrives_in_order, time_adds_up


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("check", ENGINE_CHECKS, ids=lambda check: check.__name__)
def test_engines_keep_their_promises(check, engine):
    if engine == "inline" and check.__name__ == "a_silent_stage_is_named":
        pytest.skip("the caller's own thread cannot be watched by itself")
    check(partial(open_engine, engine))


class Doubling(ThreadPipeline):
    """Hands every result out twice."""

    def results(self, source):
        for item in super().results(source):
            yield item
            yield item


class Forgetful(ThreadPipeline):
    """Loses a second of every stage's time."""

    def snapshot(self):
        from dataclasses import replace

        seen = super().snapshot()
        return replace(seen, stages=tuple(replace(stage, wall=stage.wall + 1) for stage in seen.stages))


@pytest.mark.parametrize(
    ("broken", "check"), [(Doubling, everything_arrives_in_order), (Forgetful, time_adds_up)]
)
def test_an_engine_that_breaks_them_is_found(broken: type[Pipeline], check):
    with pytest.raises(DflashError):
        check(broken)
