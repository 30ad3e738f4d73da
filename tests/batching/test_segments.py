from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.batching.segments import grouped, per_segment, segment_of

SEGMENTS = st.lists(st.lists(st.integers(-9, 9), max_size=4), max_size=12)


@given(SEGMENTS)
def test_segments_are_reduced_one_by_one(segments: list[list[int]]) -> None:
    values = np.array([value for segment in segments for value in segment], dtype=np.int64)
    offsets = np.cumsum([0, *map(len, segments)], dtype=np.int64)
    assert per_segment(np.add, values, offsets).tolist() == [sum(segment) for segment in segments]
    assert per_segment(np.maximum, values, offsets).tolist() == [max(s, default=0) for s in segments]
    assert segment_of(offsets).tolist() == [number for number, s in enumerate(segments) for _ in s]


@pytest.mark.parametrize("groups", [None, 12])
@given(data=st.data())
def test_groups_keep_their_order(groups: int | None, data: st.DataObject) -> None:
    group = data.draw(st.lists(st.integers(0, 11), max_size=40))
    values, offsets = grouped(np.arange(len(group)) + 100, np.array(group, dtype=np.int64), groups)
    parts = [values[start:end].tolist() for start, end in pairwise(offsets)]
    count = max(group, default=-1) + 1 if groups is None else groups
    assert parts == [
        [place + 100 for place, own in enumerate(group) if own == number] for number in range(count)
    ]


def test_more_groups_than_16_bits_can_number() -> None:
    group = np.arange(70_000)[::-1]
    values, offsets = grouped(np.arange(70_000), group)
    assert (values == group).all()
    assert (offsets == np.arange(70_001)).all()
