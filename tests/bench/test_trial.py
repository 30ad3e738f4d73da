"""Real trials in this process: what they count, by independent counts of the same plan."""

from __future__ import annotations

import math

import msgspec
import pytest
import torch

from dflash.batching.composition import measure
from dflash.bench import trial
from dflash.bench.clock import HostClock
from dflash.bench.exchange import TrialRequest
from dflash.bench.metrics import METRICS
from dflash.bench.trial import measure_trial
from dflash.bench.window_set import representative_windows
from dflash.data.sources import open_store
from dflash.errors import PlanError
from dflash.plugin_manager import PluginManager
from dflash.training.schedule import plan_epoch

WARMUP, WINDOWS = 2, 6
NO_COUNTERPART = {"mate_overlap", "predicted_micro_batches", "plan_seconds"}
"""Metrics of plans that need more than one epoch's plan, or are its clock."""


@pytest.fixture
def request_of(small_config):
    torch.set_num_threads(1)

    def make(strategy="random", **changes):
        return TrialRequest(strategy, small_config, WARMUP, WINDOWS, **changes)

    return make


def epoch_of(request):
    arm = PluginManager().arms(request.strategy)[0]
    return plan_epoch(arm.strategy, arm.name, open_store(request.config.data), request.config, epoch=0)


def test_it_counts_what_the_measured_windows_hold(request_of):
    request = request_of()
    found = measure_trial(request)
    epoch = epoch_of(request)
    chosen = representative_windows(epoch, WINDOWS)
    composition = measure(epoch.plan, epoch.lengths)
    assert [w.real_tokens for w in found.windows] == composition.window_real_tokens[chosen].tolist()
    assert [w.padded_tokens for w in found.windows] == composition.window_padded_tokens[chosen].tolist()
    metrics = found.metrics
    assert metrics["real_tokens"] == composition.window_real_tokens[chosen].sum()
    assert metrics["padded_tokens"] == composition.window_padded_tokens[chosen].sum()
    assert metrics["loss_tokens"] == sum(w.loss_tokens for w in found.windows) > 0
    labels = (request.config.drafter.block_size - 1) * metrics["anchor_slots"]
    assert metrics["anchor_slot_efficiency"] == metrics["loss_tokens"] / labels
    assert found.plan_digest == epoch.plan.digest() and found.windows_per_epoch == epoch.plan.windows
    assert found.losses == [w.loss for w in found.windows]
    assert all(w.gradient_norm > 0 for w in found.windows)


def test_its_times_agree_with_each_other(request_of):
    found = measure_trial(request_of())
    metrics, seconds = found.metrics, [window.seconds for window in found.windows]
    assert all(second > 0 for second in seconds)
    assert metrics["wall_seconds"] == pytest.approx(math.fsum(seconds))
    assert metrics["window_seconds"] == pytest.approx(metrics["wall_seconds"] / WINDOWS)
    for rate, count in {
        "tok_s": "real_tokens",
        "padded_tok_s": "padded_tokens",
        "loss_tok_s": "loss_tokens",
    }.items():
        assert metrics[rate] == pytest.approx(metrics[count] / metrics["wall_seconds"])
    assert metrics["cpu_seconds"] > 0
    for shares in found.stages.values():
        assert sum(shares.values()) == pytest.approx(1, abs=1e-6)
    # A kind of worker, or the one that is busier than the rest of its kind.
    assert found.bottleneck in {*found.stages, *(name.rpartition("-")[0] for name in found.stages)}
    assert found.steal_share is None or 0 <= found.steal_share <= 1
    assert found.throttled == []


def test_every_metric_has_its_value_or_no_meaning_here(request_of):
    found = measure_trial(request_of())
    without = {name for name in METRICS if found.metrics.get(name) is None}
    assert without == {*NO_COUNTERPART, "peak_gpu_memory_bytes", "predicted_tok_s"}
    assert found.metrics.keys() <= METRICS.keys()
    assert found.metrics["peak_memory_bytes"] > 50 * 2**20


def test_what_is_exact_is_equal_to_the_last_bit_however_many_workers(request_of):
    request = request_of("bucketed:buckets=3")
    first = measure_trial(request)
    more = msgspec.structs.replace(
        request.config, pipeline=msgspec.structs.replace(request.config.pipeline, prefetch=2, targets=2)
    )
    again = measure_trial(TrialRequest(request.strategy, more, WARMUP, WINDOWS))
    exact = [name for name, metric in METRICS.items() if metric.gate_rule == "exact"]
    assert {name: first.metrics.get(name) for name in exact} == {
        name: again.metrics.get(name) for name in exact
    }
    assert (first.losses, first.plan_digest) == (again.losses, again.plan_digest)


def test_a_machine_is_described_by_the_process_that_was_measured(request_of):
    machine = measure_trial(request_of()).machine
    assert machine is not None
    assert machine.gpus == [] and machine.builds["blas"]


def test_windows_that_get_slower_on_the_way_are_told_of(request_of, monkeypatch):
    """On a clock that slows down whatever the machine does: each window takes half as long again."""

    class Slowing(HostClock):
        def seconds_between(self, results):
            return [0.1 * 1.5**number for number in range(len(results) - 1)]

    monkeypatch.setattr(trial, "window_clock", lambda device: Slowing())
    found = measure_trial(request_of())
    assert [w.seconds for w in found.windows] == pytest.approx([0.1 * 1.5**k for k in range(1, WINDOWS + 1)])
    (note,) = found.notes
    assert note.startswith("no steady state") and "slower" in note


def test_an_injected_loss_of_padding_is_in_the_plan_and_in_the_windows(request_of):
    clean, worse = (
        measure_trial(request_of("sorted")),
        measure_trial(request_of("sorted", inject="padding_efficiency:2%")),
    )
    ratio = worse.metrics["padding_efficiency"] / clean.metrics["padding_efficiency"]
    assert 0.97 < ratio <= 0.98
    assert worse.metrics["target_flops_per_token"] > clean.metrics["target_flops_per_token"]
    assert worse.plan_digest != clean.plan_digest


def test_a_wrong_plan_is_the_trials_error(request_of, third_party, monkeypatch):
    monkeypatch.syspath_prepend(third_party("repeats")["PYTHONPATH"].split(":")[0])
    with pytest.raises(PlanError, match="repeats"):
        measure_trial(request_of("repeats"))
