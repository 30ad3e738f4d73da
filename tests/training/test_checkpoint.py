"""Checkpoints: what is read is what was written, or a refusal that says why."""

from __future__ import annotations

import json
import resource
import string
import threading
from contextlib import contextmanager

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from dflash.errors import DflashError, UsageError
from dflash.training.checkpoint import (
    Checkpoint,
    CheckpointWriter,
    Header,
    Origin,
    checkpoints,
    path_of,
    prune,
    read_checkpoint,
    read_header,
    refuse_another_run,
    write_checkpoint,
)

ORIGIN = Origin(
    fingerprint="f" * 64,
    plan_digests=("a" * 64, "b" * 64),
    target_settings="c" * 64,
    target_weights="d" * 64,
    settings={"training": {"seed": 0, "init": None}, "optimizer": {"learning_rate": 1e-3}},
    rounding={"pipeline.drafters": 2},
)


def header(windows=3, held_out_loss=None, origin=ORIGIN):
    return Header(
        windows=windows, epoch=0, results=windows, bad_rows=(), held_out_loss=held_out_loss, origin=origin
    )


def written(folder, windows, **facts):
    path = path_of(folder, windows)
    checkpoint = Checkpoint(header=header(windows, **facts), tensors={"drafter.w": torch.zeros(2)})
    write_checkpoint(path, checkpoint)
    return path


names = st.text(string.ascii_letters + "._", min_size=1, max_size=9)
numbers = st.integers(0, 2**40)
values = st.none() | st.booleans() | numbers | st.floats(allow_nan=False, allow_infinity=False) | st.text()
origins = st.builds(
    Origin,
    fingerprint=st.text(),
    plan_digests=st.lists(st.text()).map(tuple),
    target_settings=st.text(),
    target_weights=st.text(),
    settings=st.dictionaries(names, st.dictionaries(names, values, max_size=3), max_size=3),
    rounding=st.dictionaries(names, values, max_size=3),
)
headers = st.builds(
    Header,
    windows=numbers,
    epoch=numbers,
    results=numbers,
    bad_rows=st.lists(numbers).map(tuple),
    held_out_loss=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    origin=origins,
)
tensors = st.dictionaries(
    names,
    st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6).map(
        # Any bits, those of NaN and of denormal numbers too.
        lambda bits: torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    ),
    max_size=4,
)


@settings(max_examples=40)
@given(header=headers, tensors=tensors)
def test_what_is_read_is_what_was_written(tmp_path_factory, header, tensors):
    path = path_of(tmp_path_factory.mktemp("run"), 7)
    write_checkpoint(path, Checkpoint(header=header, tensors=tensors))
    assert read_header(path) == header
    found = read_checkpoint(path)
    assert found.header == header and found.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found.tensors[name].view(torch.int32).tolist() == tensor.view(torch.int32).tolist()


@settings(max_examples=40)
@given(part=st.floats(0, 1, exclude_max=True))
def test_a_part_of_a_checkpoint_is_refused(tmp_path_factory, part):
    path = written(tmp_path_factory.mktemp("run"), 3)
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    for read in (read_header, read_checkpoint):
        with pytest.raises(UsageError, match=path.name):
            read(path)


def test_what_is_no_checkpoint_of_this_version_is_refused(tmp_path):
    path = tmp_path / "one.safetensors"
    with pytest.raises(UsageError, match="no checkpoint that can be read"):
        read_header(path)
    save_file({"w": torch.zeros(1)}, path)
    with pytest.raises(UsageError, match="no checkpoint of dflash"):
        read_header(path)
    save_file({"w": torch.zeros(1)}, path, {"dflash": json.dumps({"version": 2})})
    with pytest.raises(UsageError, match="of version 2; this dflash reads 1"):
        read_header(path)
    save_file({"w": torch.zeros(1)}, path, {"dflash": json.dumps({"version": 1, "windows": "many"})})
    with pytest.raises(UsageError, match="no checkpoint of dflash"):
        read_header(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fingerprint": "0" * 64}, "another data set: its fingerprint is ffffffffffff, not 000000000000"),
        ({"target_settings": "0" * 64}, "another target: the hash of its config.json is cccccccccccc"),
        ({"target_weights": "0" * 64}, "another target: the hash of its weights is dddddddddddd"),
        ({"plan_digests": ("a" * 64, "0" * 64)}, "other plans: that of epoch 1 has digest bbbbbbbbbbbb"),
        ({"plan_digests": ("a" * 64,)}, "of a run of 2 epochs, not 1"),
        ({"settings": {**ORIGIN.settings, "training": {"seed": 1, "init": None}}}, "training.seed=0, not 1"),
        ({"settings": {**ORIGIN.settings, "data": {"overlong": "drop"}}}, "data.overlong=None, not 'drop'"),
    ],
)
def test_another_run_is_refused_with_what_differs(tmp_path, change, words):
    path = written(tmp_path, 3)
    found = read_header(path).origin
    refuse_another_run(found, ORIGIN, path)
    with pytest.raises(UsageError, match="window-00000003") as refused:
        refuse_another_run(found, msgspec.structs.replace(ORIGIN, **change), path)
    assert words in str(refused.value)


def test_rounding_alone_makes_no_other_run(tmp_path):
    refuse_another_run(ORIGIN, msgspec.structs.replace(ORIGIN, rounding={}), tmp_path)


@given(
    losses=st.lists(st.none() | st.floats(0, 9), min_size=1, max_size=8),
    keep=st.integers(1, 4),
    data=st.data(),
)
@settings(max_examples=25)
def test_the_last_and_the_best_are_kept(tmp_path_factory, losses, keep, data):
    folder = tmp_path_factory.mktemp("run")
    for windows, loss in enumerate(losses):
        written(folder, windows, held_out_loss=loss)
    until = data.draw(st.integers(0, len(losses) - 1))
    prune(folder, keep, until)
    known = [(loss, windows) for windows, loss in enumerate(losses[: until + 1]) if loss is not None]
    kept = {*range(max(0, until + 1 - keep), len(losses)), *([min(known)[1]] if known else [])}
    assert list(checkpoints(folder)) == sorted(kept)


def test_a_damaged_checkpoint_ends_no_run(tmp_path):
    for windows in range(4):
        written(tmp_path, windows, held_out_loss=float(windows))
    path_of(tmp_path, 0).write_bytes(b"damaged")
    prune(tmp_path, 1, 3)
    assert list(checkpoints(tmp_path)) == [1, 3]


def test_temporaries_and_strangers_are_no_checkpoints(tmp_path):
    path = written(tmp_path, 5)
    for name in (".window-00000009.safetensors.0123.tmp", "window-9.safetensors", "window-00000009.txt"):
        (path.parent / name).write_bytes(b"")
    assert checkpoints(tmp_path) == {5: path}


def test_the_writer_writes_what_was_there_when_it_was_told(tmp_path, monkeypatch):
    """Whatever happens to the weights while it is at it."""
    from dflash.training import checkpoint

    go_on, write = threading.Event(), write_checkpoint

    def waiting(path, content):
        assert go_on.wait(30)
        write(path, content)

    monkeypatch.setattr(checkpoint, "write_checkpoint", waiting)
    writer, weights = CheckpointWriter(), torch.arange(5.0)
    path = path_of(tmp_path, 1)
    writer.write(path, header(1), {"drafter.w": weights})
    weights.zero_()
    assert not path.exists()
    go_on.set()
    writer.join()
    assert read_checkpoint(path).tensors["drafter.w"].tolist() == [0, 1, 2, 3, 4]


@contextmanager
def no_file_above(nbytes):
    """What a full disk is to whoever writes: the rest of a file cannot be written."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_checkpoint_that_cannot_be_written_leaves_nothing_and_is_heard_of_once(tmp_path):
    last = written(tmp_path, 1)
    writer = CheckpointWriter()
    with no_file_above(100_000):
        writer.write(path_of(tmp_path, 2), header(2), {"drafter.w": torch.zeros(200_000)})
        with pytest.raises(DflashError, match=r"cannot write the checkpoint .*00000002.*large"):
            writer.join()
    assert list(last.parent.iterdir()) == [last] and read_header(last).windows == 1
    writer.join()
    writer.write(path_of(tmp_path, 3), header(3), {"drafter.w": torch.zeros(200_000)})
    writer.join()
    assert list(checkpoints(tmp_path)) == [1, 3]


def test_the_next_write_hears_of_an_error_that_nobody_asked_for(tmp_path):
    (tmp_path / "run").write_text("a file where the folder should be")
    writer = CheckpointWriter()
    writer.write(path_of(tmp_path / "run", 1), header(1), {})
    with pytest.raises(DflashError, match="cannot write"):
        writer.write(path_of(tmp_path / "other", 2), header(2), {})
