"""`dflash doctor`: what it finds out, what it refuses, and that it touches nothing."""

from __future__ import annotations

import json
import os

import pytest
import torch
from commands import run_command
from safetensors.torch import load_file

from dflash.config import _override, dump_config
from dflash.cores import _of_hierarchy, usable_cores
from dflash.data.sources import open_store
from dflash.pipeline.slots import SlotRing
from dflash.training import diagnosis
from dflash.training.diagnosis import Device, diagnose
from dflash.training.models import load_models
from dflash.training.run import _slot_bytes

GB = 10**9


def asked(config, *overrides):
    """The settings with some changed, as the command line changes them."""
    for override in overrides:
        config = _override(config, override)
    return config


def fatal(found):
    return [problem.text for problem in found.problems if problem.fatal]


@pytest.fixture
def gpus(monkeypatch):
    """Have so many GPUs of 80 GB, of which so much is free."""

    def have(count, free=70 * GB):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        devices = [Device(f"cuda:{number}", "a GPU", 80 * GB, free) for number in range(count)]
        monkeypatch.setattr(diagnosis, "_devices", lambda: devices)
        able = {"CUDA": True, "flex attention": True, "gloo": True, "NCCL": True}
        monkeypatch.setattr(diagnosis, "_abilities", lambda: {**able, "shared memory without a name": True})

    return have


def test_a_run_that_works_has_no_problem(small_config):
    found = diagnose(small_config)
    assert found.works and not fatal(found)
    assert found.placement.engine == "thread"
    assert found.versions["torch"] == torch.__version__
    assert found.cores == len(os.sched_getaffinity(0)) == usable_cores()
    assert "240 samples" in found.store and "40 held out" in found.store


def test_slots_and_weights_are_those_of_the_run(small_config):
    """Against what a run really takes: its slots' bytes, the file's weights, the drafter's parameters."""
    config = asked(small_config, "pipeline.drafters=2", "pipeline.targets=3", "data.target_dtype=bfloat16")
    found = diagnose(config)
    ring = SlotRing(config.pipeline.slots, _slot_bytes(config))
    assert found.slots.total_bytes == 2 * ring.count * ring.slot_bytes
    target = load_file(f"{config.data.target}/model.safetensors")
    models = load_models(asked(small_config), open_store(config.data))
    drafter = sum(weight.numel() for weight in models.drafter.parameters())
    expected = 3 * 2 * sum(weight.numel() for weight in target.values()) + 2 * 16 * drafter
    assert found.weights == {"cpu": expected}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["pipeline.devices=cuda:9"], "there is no cuda:9"),
        (["data.store=nowhere.arrow"], "nowhere.arrow"),
        (["data.target=nowhere"], "nowhere"),
        (["batching.strategy=bucketd"], "did you mean 'bucketed'"),
        (["drafter.attention=flex"], "no backward pass on cpu"),
        (["pipeline.engine=process", "batching.token_budget=999999999"], "lower batching.token_budget"),
    ],
)
def test_what_cannot_work_is_a_problem_with_a_way_out(small_config, overrides, message):
    found = diagnose(asked(small_config, *overrides))
    assert not found.works
    (text,) = fatal(found)
    assert message in text


def test_eight_gpus_take_six_and_two(small_config, gpus):
    gpus(8)
    found = diagnose(asked(small_config, "pipeline.targets=6", "pipeline.drafters=2"))
    assert found.works, found.problems
    assert found.placement.engine == "process"
    assert found.placement.drafters == ("cuda:6", "cuda:7")
    assert set(found.weights) == {f"cuda:{number}" for number in range(8)}


def test_drafters_that_would_share_a_gpu_are_refused_where_nccl_sums(small_config, gpus):
    gpus(3)
    (text,) = fatal(diagnose(asked(small_config, "pipeline.targets=2", "pipeline.drafters=4")))
    assert text.startswith("2 drafters share cuda:2, but NCCL wants a GPU for each")
    assert diagnose(asked(small_config, "pipeline.targets=1", "pipeline.drafters=2")).works
    thread = ("pipeline.targets=2", "pipeline.drafters=4", "pipeline.engine=thread")
    assert diagnose(asked(small_config, *thread)).works


def test_weights_that_do_not_fit_a_gpu_are_refused(small_config, gpus):
    gpus(2, free=1000)
    texts = fatal(diagnose(small_config))
    assert [text.split(" needs")[0] for text in texts] == ["cuda:0", "cuda:1"]


def test_waste_is_a_note(small_config, gpus, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    gpus(4)
    found = diagnose(small_config)
    assert found.works
    notes = [problem.text for problem in found.problems]
    assert any("OMP_NUM_THREADS=8" in note and "unset it" in note for note in notes)
    assert any(
        note.startswith("nobody works on cuda:2, cuda:3: --topology N:M with N + M = 4") for note in notes
    )


def test_more_workers_than_cores_is_a_note(small_config, monkeypatch):
    monkeypatch.setattr(diagnosis, "usable_cores", lambda: 16)
    monkeypatch.setattr(diagnosis, "cpu_quota", lambda: 2.5)
    (problem,) = diagnose(asked(small_config, "pipeline.targets=6", "pipeline.drafters=2")).problems
    assert (problem.fatal, problem.text[:35]) == (False, "8 workers take turns on 2.5 cores: ")


def test_a_quota_is_read_from_the_groups_above_too(tmp_path, monkeypatch):
    monkeypatch.setattr("dflash.cores._GROUPS", tmp_path)
    group = tmp_path / "a" / "b"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text("max 100000\n")
    (tmp_path / "a" / "cpu.max").write_text("150000 100000\n")
    assert _of_hierarchy("0::/a/b") == [1.5]
    old = tmp_path / "cpu" / "c"
    old.mkdir(parents=True)
    (old / "cpu.cfs_quota_us").write_text("50000\n")
    (old / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert _of_hierarchy("4:cpu,cpuacct:/c") == [0.5]
    assert _of_hierarchy("7:memory:/c") == []


def test_the_command_prints_tells_by_its_exit_code_and_writes_nothing(small_config, tmp_path):
    (tmp_path / "run.toml").write_text(dump_config(small_config))
    arguments = ("doctor", "--config", "run.toml", "--topology", "2:1")
    good = run_command("dflash", *arguments, cwd=tmp_path)
    assert (good.code, good.err) == (0, "")
    assert "targets     cpu, cpu\n" in good.out and "drafters    cpu\n" in good.out
    assert "1 drafters x 5 slots x 400 tokens" in good.out
    bad = run_command("dflash", *arguments, "--set", "pipeline.devices=cuda:77", "--json", cwd=tmp_path)
    assert bad.code == 2
    found = json.loads(bad.out)
    assert (found["works"], found["placement"]) == (False, None)
    assert found["problems"][0]["fatal"]
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]
