from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dflash.models.anchors import build_slots, choose_anchors, valid_positions

masks = arrays(np.uint8, st.integers(0, 60), elements=st.integers(0, 1))


@given(masks)
def test_a_block_starts_where_anchor_and_next_token_are_supervised(mask):
    expected = [a for a in range(len(mask)) if mask[a] and a + 1 < len(mask) and mask[a + 1]]
    assert valid_positions(mask).tolist() == expected


@given(masks, st.integers(1, 9), st.integers(1, 9), st.integers(0, 5), st.integers(0, 10**12))
def test_count_order_and_membership(mask, most, stride, epoch, row):
    anchors = choose_anchors(mask, seed=3, epoch=epoch, row=row, max_anchors=most, stride=stride)
    valid = valid_positions(mask)
    assert len(anchors) == min(most, math.ceil(len(valid) / stride))
    assert np.all(np.diff(anchors) > 0)
    assert np.isin(anchors, valid).all()


def philox_words(seed: int, epoch: int, row: int, count: int) -> list[int]:
    """Philox4x64-10 in plain integers (Salmon et al., SC'11), counter incremented before each block."""
    words: list[int] = []
    block = 0
    while len(words) < count:
        block += 1
        x, key = [block, 0, 0, row], [seed, epoch]
        for _ in range(10):
            high0, low0 = divmod(0xD2E7470EE14C6C93 * x[0], 2**64)
            high1, low1 = divmod(0xCA5A826395121157 * x[2], 2**64)
            x = [high1 ^ x[1] ^ key[0], low1, high0 ^ x[3] ^ key[1], low0]
            key = [(key[0] + 0x9E3779B97F4A7C15) % 2**64, (key[1] + 0xBB67AE8584CAA73B) % 2**64]
        words += x
    return words[:count]


@pytest.mark.parametrize(
    ("seed", "epoch", "row", "anchors"),
    [
        (0, 0, 0, [0, 43, 54, 66, 69]),
        (0, 0, 1, [7, 8, 14, 32, 76]),
        (0, 1, 0, [17, 22, 31, 34, 70]),
        (1, 0, 0, [3, 5, 66, 78, 90]),
        (7, 2, 902_086, [47, 50, 53, 85, 96]),
    ],
)
def test_fixed_vectors(seed, epoch, row, anchors):
    """The draw is part of the contract: it must not change with numpy, platform or refactoring."""
    mask = np.ones(100, dtype=np.uint8)
    drawn = choose_anchors(mask, seed=seed, epoch=epoch, row=row, max_anchors=5, stride=1)
    assert drawn.tolist() == anchors
    words = philox_words(seed, epoch, row, 99)
    assert sorted(sorted(range(99), key=lambda a: words[a])[:5]) == anchors


def test_every_valid_position_is_equally_likely():
    mask = np.ones(11, dtype=np.uint8)
    draws = 4_000
    counts = np.zeros(10)
    for row in range(draws):
        counts[choose_anchors(mask, seed=0, epoch=0, row=row, max_anchors=3, stride=1)] += 1
    # each count is binomial(draws, 3/10); 5 standard deviations
    assert np.abs(counts - draws * 0.3).max() < 5 * math.sqrt(draws * 0.3 * 0.7)


def test_seed_epoch_and_row_are_separate_words():
    mask = np.ones(1_000, dtype=np.uint8)

    def draw(seed, epoch, row):
        return tuple(choose_anchors(mask, seed=seed, epoch=epoch, row=row, max_anchors=20, stride=1))

    keys = [(s, e, r) for s in range(3) for e in range(3) for r in range(3)]
    assert len({draw(*key) for key in keys}) == len(keys)  # (1, 0) is not (0, 1), as seed + epoch would be


@given(st.lists(masks.filter(len), max_size=5), st.integers(2, 7), st.data())
def test_slots_by_brute_force(document_masks, block, data):
    rng = np.random.default_rng(0)
    tokens = [rng.integers(0, 50, len(mask)) for mask in document_masks]
    anchors = [
        np.array(sorted(data.draw(st.sets(st.integers(0, len(mask) - 1), max_size=4))), dtype=np.int64)
        for mask in document_masks
    ]
    slots = build_slots(tokens, document_masks, anchors, block_size=block)
    n = 0
    for document, positions in enumerate(anchors):
        for a in positions.tolist():
            assert (slots.document_N[n], slots.position_N[n]) == (document, a)
            assert slots.token_N[n] == tokens[document][a]
            for k in range(block):
                inside = a + k < len(tokens[document])
                counts = bool(k > 0 and inside and document_masks[document][a + k])
                assert slots.label_NB[n, k] == (tokens[document][a + k] if inside else 0)
                assert slots.labelled_NB[n, k] == counts
            n += 1
    assert n == len(slots)
