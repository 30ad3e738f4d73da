from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch.utils.flop_counter import FlopCounterMode

from dflash.config import DrafterSettings

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_step.py"
GPU_STEP = runpy.run_path(str(SCRIPT))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so_in_one_line():
    ended = CliRunner().invoke(GPU_STEP["main"], [])
    assert ended.exit_code == 2
    assert ended.stderr == "gpu_step: no CUDA device here: rehearse with --device cpu --tiny\n"
    assert ended.stdout == ""


def test_the_rehearsal_checks_and_measures():
    torch.set_num_threads(1)
    arguments = ["--device", "cpu", "--tiny", "--steps", "2", "--peak-tflops", "1"]
    ended = CliRunner().invoke(GPU_STEP["main"], arguments)
    assert ended.exit_code == 0, ended.output
    assert len(re.findall(r"^check .*: ok$", ended.stdout, re.MULTILINE)) == 2
    for line in ("step ", "work ", "memory "):
        assert re.search(rf"^{line} *[\d.,]+ (ms|GFLOP|GiB)", ended.stdout, re.MULTILINE), ended.stdout
    assert re.search(r"MFU [\d.]+% of 1 TFLOP/s$", ended.stdout, re.MULTILINE)


def test_a_wrong_kernel_is_found(monkeypatch):
    """A context mask of <= instead of <: every block sees its own anchor as well."""
    right = GPU_STEP["prepare_attention"]

    def wrong(name, document_N, position_N, *others):
        return right(name, document_N, position_N + (name == "auto"), *others)

    scope = GPU_STEP["Places"].attention.__globals__
    monkeypatch.setitem(scope, "prepare_attention", wrong)
    ended = CliRunner().invoke(GPU_STEP["main"], ["--device", "cpu", "--tiny"])
    assert ended.exit_code == 1
    assert "WRONG" in ended.stdout


def test_operations_are_those_that_torch_counts():
    """With the reference, where every block position sees all context and all blocks."""
    shape = GPU_STEP["TINY"]
    places = GPU_STEP["draw_places"]([60, 41], [5, 3])
    step = GPU_STEP["Step"](shape, places, torch.device("cpu"))
    step.drafter.computing_as(DrafterSettings(attention="reference"))
    rows, context = 8 * shape.block_size, 101
    labels = int(step.batch.slots.labelled_NB.sum())
    expected = GPU_STEP["training_flops"](shape, context, 8, rows * (context + rows), labels)
    with FlopCounterMode(display=False) as counter:
        step()
    assert counter.get_total_flops() == expected


def test_a_step_counts_what_its_blocks_see():
    shape = GPU_STEP["TINY"]
    places = GPU_STEP["draw_places"]([60, 41], [5, 3])
    step = GPU_STEP["Step"](shape, places, torch.device("cpu"))
    seen = sum((position + shape.block_size) * shape.block_size for position in places.position_N.tolist())
    labels = int(np.count_nonzero(step.batch.slots.labelled_NB))
    assert step.flops == GPU_STEP["training_flops"](shape, 101, 8, seen, labels)
