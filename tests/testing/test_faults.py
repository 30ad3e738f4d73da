"""Faults on purpose: how they are written, and what is refused. What they do is in tests/test_failures.py."""

from __future__ import annotations

import pickle

import pytest

from dflash.config import load_config
from dflash.errors import UsageError
from dflash.testing.faults import FAULTS, Fault


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kill:target:1@window=3", Fault("kill", "target", 1, 3)),
        ("short-read:store@window=2", Fault("short-read", "store", 0, 2)),
        ("disk-full:checkpoint@window=10", Fault("disk-full", "checkpoint", 0, 10)),
    ],
)
def test_faults_are_read(text, fault):
    assert Fault.parse(text) == fault
    assert Fault.parse(str(fault)) == fault
    assert pickle.loads(pickle.dumps(fault)) == fault


@pytest.mark.parametrize(
    "text",
    [
        "",
        "kill",
        "kill:target:1",
        "kill:target:x@window=1",
        "kill:target:1@window=-1",
        "kill:target@window=1 ",
        "kill:store@window=1",
        "nan:drafter:0@window=1",
        "eat:target:0@window=1",
    ],
)
def test_anything_else_lists_what_there_is(text):
    with pytest.raises(UsageError) as refused:
        Fault.parse(text)
    message = str(refused.value)
    assert "\n" not in message
    assert all(f"{kind}:{stage}" in message for kind, stages in FAULTS.items() for stage in stages)


@pytest.mark.parametrize(
    ("text", "settings", "reason"),
    [
        ("kill:target:2@window=0", ["pipeline.targets=2"], "numbered from 0, and there are 2"),
        ("raise:drafter:1@window=0", [], "numbered from 0, and there are 1"),
        ("kill:target@window=0", [], "pipeline.engine=process"),
        ("deaf:drafter@window=0", ["pipeline.engine=thread"], "pipeline.engine=process"),
        ("hang:reduction@window=0", ["pipeline.drafters=2"], "pipeline.engine=process"),
        ("kill:reduction@window=0", ["pipeline.engine=process"], "--topology 1:2"),
        ("kill:target@window=0", ["pipeline.engine=process"], None),
        ("hang:target@window=0", [], None),
    ],
)
def test_a_fault_that_a_run_has_no_place_for_is_refused(text, settings, reason):
    config = load_config(None, tuple(settings))
    if reason is None:
        Fault.parse(text).check(config)
    else:
        with pytest.raises(UsageError, match=reason):
            Fault.parse(text).check(config)
