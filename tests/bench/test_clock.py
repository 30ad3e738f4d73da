"""Both clocks around real optimizer steps; the events' clock with events of the host, as there is no GPU."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch

from dflash.bench.clock import EventClock, HostClock, window_clock
from dflash.errors import TrialError
from dflash.training.placement import Placement


class HostEvent:
    """What torch.cuda.Event does, on the host's clock: nothing may be read before it was waited for."""

    waited = False

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self, stream=None):
        self.at = time.perf_counter()

    def synchronize(self):
        type(self).waited = True

    def elapsed_time(self, end_event):
        assert self.waited
        return 1000 * (end_event.at - self.at)


def steps(pauses):
    """An optimizer step after each pause, with a commit behind it, as the trainer makes them."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight])
    results = []
    for pause in pauses:
        time.sleep(pause)
        if pause:
            weight.grad = torch.ones(3)
            optimizer.step()
        results.append(SimpleNamespace(committed_at=time.perf_counter()))
    return results


def test_events_behind_steps_tell_the_seconds_between_commits():
    HostEvent.waited = False
    with EventClock(HostEvent) as clock:
        results = steps([0.01, 0.03, 0.06])
    of_events = clock.seconds_between(results)
    of_commits = HostClock().seconds_between(results)
    assert len(of_events) == 2
    assert of_events == pytest.approx(of_commits, abs=0.02)
    assert of_events[1] > of_events[0] >= 0.03


def test_steps_of_others_before_and_after_leave_no_mark():
    steps([0.001])
    with EventClock(HostEvent) as clock:
        results = steps([0.001, 0.001])
    steps([0.001])
    assert len(clock.seconds_between(results)) == 1


def test_a_window_without_a_step_is_not_timed_wrongly():
    with EventClock(HostEvent) as clock:
        results = steps([0.001, 0, 0.001])
    with pytest.raises(TrialError, match="3 windows took 2 optimizer steps"):
        clock.seconds_between(results)


def test_the_device_decides():
    def clock(engine: str, drafter: str) -> object:
        return window_clock(Placement(engine, ("cpu",), (drafter,), ""))

    assert isinstance(clock("thread", "cpu"), HostClock)
    assert isinstance(clock("thread", "cuda:1"), EventClock)
    assert isinstance(clock("process", "cuda:1"), HostClock), "its commit waits for its device"
