"""The curves, read back by TensorBoard's own reader."""

from __future__ import annotations

import sys

import pytest

from dflash.errors import UsageError
from dflash.hookspecs import ObserverSpec
from dflash.pipeline import StageTelemetry, Telemetry
from dflash.pipeline.work import Counts
from dflash.training.events import of_interval, of_result, run_end, run_start
from dflash.training.meter import Interval
from dflash.training.step import EvaluationResult, SaveResult, WindowResult
from dflash_plugins.tensorboard import TensorBoard, dflash_observers

COUNTS = Counts(real_tokens=600, padded_tokens=800, loss_tokens=300)


def window(number, loss):
    return WindowResult(
        number, 0, loss, 1.0, [None, 0.5, 0.25], 2.0, 1e-3, None, None, COUNTS, [], committed_at=float(number)
    )


def curves(folder):
    """``{tag: [(step, value)]}`` of a folder of event files."""
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    return {tag: [(one.step, one.value) for one in accumulator.Scalars(tag)] for tag in tags}


def tell(folder, first, results):
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    hear = TensorBoard().open(run_start(folder, 10, first, {}))
    for result in results:
        hear(result)
    hear(run_end("finished", None, None))


def test_losses_rates_and_stages_are_curves(tmp_path):
    stages = (StageTelemetry(name="target-0", wall=4.0, busy=3.0, starved=1.0), StageTelemetry(name="feed"))
    interval = Interval(4.0, 2, 2, COUNTS, 6.0, Telemetry(seconds=4.0, stages=stages, channels=()))
    results = [of_result(EvaluationResult(0, 7.0, [None, 0.125]))]
    results += [of_result(window(0, 6.5)), of_result(window(1, None)), of_result(SaveResult(2, tmp_path))]
    tell(tmp_path, 0, [*results, of_interval(interval)])
    found = curves(tmp_path / "tensorboard")
    assert found["loss/held-out"] == [(0, 7.0)]
    assert found["loss/training"] == [(1, 6.5)], "a window without weight has no loss"
    assert found["accuracy/training, slot 1"] == [(1, 0.5), (2, 0.5)]
    assert found["tokens per second/real"] == [(2, 150.0)]
    assert found["tokens per second/padded"] == [(2, 200.0)]
    assert found["tokens per second/loss"] == [(2, 75.0)]
    assert found["batching/padding efficiency"] == [(2, 0.75)]
    assert found["busy/target-0"] == [(2, 0.75)]
    assert "busy/feed" not in found and "batching/gradient diversity" not in found


def test_a_run_that_goes_on_replaces_what_was_lost(tmp_path):
    """Killed after window 4, resumed from the checkpoint after window 2: no step is there twice."""
    tell(tmp_path, 0, [of_result(window(number, 8.0 - number)) for number in range(4)])
    tell(tmp_path, 2, [of_result(window(number, 4.0 - number)) for number in (2, 3)])
    assert curves(tmp_path / "tensorboard")["loss/training"] == [(1, 8.0), (2, 7.0), (3, 2.0), (4, 1.0)]


def test_without_the_package_it_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match=r"pip install 'dflash\[tensorboard\]'"):
        TensorBoard().open(run_start(tmp_path, 10, 0, {}))


def test_it_is_on_offer_and_costs_no_import_to_list():
    (spec,) = dflash_observers()
    assert isinstance(spec, ObserverSpec)
    assert (spec.name, spec.observer) == ("tensorboard", TensorBoard)
