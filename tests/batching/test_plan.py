from __future__ import annotations

import hashlib
import struct
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest

from dflash.batching.plan import LEDGER, BatchPlan, PlanRequest, Reason, ledger
from dflash.errors import PlanError, UsageError


def request(**changes: Any) -> PlanRequest:
    fields = {"token_budget": 100, "seed": 0, "epoch": 0, "drafters": 3, "accumulation": 2, "tail": "spread"}
    return PlanRequest(**{**fields, **changes})


def plan(**changes: Any) -> BatchPlan:
    fields = {
        "samples": np.array([2, 0, 1]),
        "batch_offsets": np.array([0, 2, 3]),
        "window_offsets": np.array([0, 1, 2]),
        "layout": "padded",
        "ids": np.array([10, 11, 17]),
        "ledger": ledger(np.array([5]), np.array([900]), Reason.DROPPED),
    }
    return BatchPlan(**{**fields, **changes})


def test_a_window_has_a_times_m_micro_batches() -> None:
    assert request(drafters=3, accumulation=2).window_size == 6
    assert request().attention_length == 16_000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("token_budget", 0),
        ("token_budget", 2**31),
        ("token_budget", 10.0),
        ("token_budget", "100"),
        ("seed", -1),
        ("seed", None),
        ("epoch", -1),
        ("drafters", 0),
        ("accumulation", True),
        ("attention_length", 0),
        ("tail", "keep"),
    ],
)
def test_a_bad_request_names_the_field_and_the_value(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"^{name}={value!r}: expected"):
        request(**{name: value})


def test_numpy_integers_are_integers() -> None:
    assert type(request(token_budget=np.int32(7)).token_budget) is int


def test_seed_epoch_and_stream_are_never_added_up() -> None:
    def draw(seed: int, epoch: int, stream: int) -> tuple[int, ...]:
        return tuple(request(seed=seed, epoch=epoch).rng(stream).integers(2**62, size=4).tolist())

    keys = [(1, 1, 0), (2, 0, 0), (0, 2, 0), (1, 0, 1), (0, 1, 1), (0, 0, 2), (1, 0, 0)]
    assert len({draw(*key) for key in keys}) == len(keys)
    assert draw(1, 1, 0) == draw(1, 1, 0)
    expected = np.random.Generator(np.random.PCG64(np.random.SeedSequence([3, 4, 5]))).integers(2**62, size=4)
    assert draw(3, 4, 5) == tuple(expected.tolist())


def test_micro_batches_and_windows_by_number() -> None:
    p = plan()
    assert (p.batches, p.windows) == (2, 2)
    assert p.batch(0).tolist() == [2, 0]
    assert p.batch(1).tolist() == [1]
    assert p.window(1) == range(1, 2)
    assert p.batch(0).base is p.samples
    for number in (-1, 2):
        with pytest.raises(IndexError):
            p.batch(number)
        with pytest.raises(IndexError):
            p.window(number)


@pytest.mark.parametrize("name", ["samples", "batch_offsets", "window_offsets", "ids", "ledger"])
def test_a_plan_cannot_be_changed(name: str) -> None:
    given = np.array([2, 0, 1])
    p = plan(samples=given)
    given[0] = 1  # the caller's array stays the caller's
    assert p.samples.tolist() == [2, 0, 1]
    with pytest.raises(ValueError, match="read-only"):
        getattr(p, name)[0] = 0
    with pytest.raises(FrozenInstanceError):
        setattr(p, name, given)


@pytest.mark.parametrize(
    "wrong",
    [
        {"samples": np.array([2, 0, 1], dtype=np.int32)},
        {"samples": [2, 0, 1]},
        {"samples": np.array([[2, 0, 1]])},
        {"batch_offsets": np.array([0.0, 2.0, 3.0])},
        {"window_offsets": np.array([0, 1, 2], dtype=">i8")},
        {"ids": np.array([10, 11, 17], dtype=np.uint64)},
        {"ledger": np.array([5])},
        {"layout": "ragged"},
    ],
)
def test_a_plan_takes_no_other_dtype_shape_or_layout(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(PlanError, match=name):
        plan(**wrong)


def test_digest_is_sha256_of_the_little_endian_arrays() -> None:
    text = b"dflash plan 1 padded\n"
    text += b"samples 3\n" + struct.pack("<3q", 2, 0, 1)
    text += b"batch_offsets 3\n" + struct.pack("<3q", 0, 2, 3)
    text += b"window_offsets 3\n" + struct.pack("<3q", 0, 1, 2)
    text += b"ids 3\n" + struct.pack("<3q", 10, 11, 17)
    text += b"ledger 1\n" + struct.pack("<3q", 5, 900, 1)
    assert plan().digest() == hashlib.sha256(text).hexdigest()


def test_every_part_changes_the_digest() -> None:
    p = plan()
    changed = [
        replace(p, samples=np.array([0, 2, 1])),
        replace(p, batch_offsets=np.array([0, 1, 3])),
        replace(p, window_offsets=np.array([0, 0, 2])),
        replace(p, layout="packed"),
        replace(p, ids=np.array([10, 11, 18])),
        replace(p, ledger=np.empty(0, LEDGER)),
        replace(p, ledger=ledger(np.array([5]), np.array([901]), Reason.DROPPED)),
        replace(p, ledger=ledger(np.array([5]), np.array([900]), Reason.CUT)),
    ]
    assert len({p.digest(), *(other.digest() for other in changed)}) == len(changed) + 1
