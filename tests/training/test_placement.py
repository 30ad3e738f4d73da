"""Which engine and devices a topology gets, with any number of GPUs."""

from __future__ import annotations

import pytest
import torch

from dflash.config import PipelineSettings
from dflash.errors import UsageError
from dflash.training.placement import place


@pytest.fixture
def gpus(monkeypatch):
    """Say how many GPUs are visible."""
    return lambda count: monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize(
    ("count", "targets", "drafters", "devices", "engine", "where"),
    [
        (0, 6, 2, "auto", "thread", ["cpu"] * 8),
        (8, 6, 2, "auto", "process", [f"cuda:{n}" for n in range(8)]),
        (8, 1, 7, "auto", "process", [f"cuda:{n}" for n in range(8)]),
        (2, 3, 1, "auto", "process", ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]),
        (8, 1, 1, "cpu", "thread", ["cpu", "cpu"]),
        (8, 2, 1, "cuda:5, cuda:3,cuda:1", "process", ["cuda:5", "cuda:3", "cuda:1"]),
        (1, 1, 1, "cuda", "process", ["cuda", "cuda"]),
    ],
)
def test_every_worker_has_a_device(gpus, count, targets, drafters, devices, engine, where):
    gpus(count)
    placement = place(PipelineSettings(targets=targets, drafters=drafters, devices=devices))
    assert (placement.engine, [*placement.targets, *placement.drafters]) == (engine, where)
    assert len(placement.targets) == targets


@pytest.mark.parametrize("engine", ["inline", "thread", "process"])
def test_an_engine_that_is_asked_for_is_taken(gpus, engine):
    gpus(2)
    assert place(PipelineSettings(engine=engine)).engine == engine


def test_the_reason_says_what_was_found_and_who_shares(gpus):
    gpus(0)
    assert place(PipelineSettings()).reason == "no GPU is visible; 2 workers share 1 in turn"
    gpus(4)
    assert place(PipelineSettings(targets=3)).reason == "4 GPUs are visible"
    assert place(PipelineSettings(devices="cuda:1,cpu")).reason == "pipeline.devices asks for cuda:1, cpu"


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ("cuda:2", "there is no cuda:2, 2 GPUs are visible"),
        ("gpu0", "'gpu0' is no device; write cpu or cuda:0,cuda:1"),
        ("cuda:0,", "'' is no device"),
    ],
)
def test_a_device_that_is_not_there_is_refused(gpus, devices, message):
    gpus(2)
    with pytest.raises(UsageError, match=message):
        place(PipelineSettings(devices=devices))
