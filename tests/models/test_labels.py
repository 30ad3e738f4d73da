from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.models.labels import block_labels


@pytest.mark.parametrize("offset", [0, 1])
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4), block=st.integers(2, 6), data=st.data())
def test_labels_by_brute_force(offset, lengths, block, data):
    """Offset 0 is DFlash's; 1 is that of drafters whose anchor slot drafts as well."""
    rng = np.random.default_rng(sum(lengths))
    documents = [rng.integers(1, 99, length) for length in lengths]
    masks = [rng.random(length) < 0.7 for length in lengths]
    blocks = data.draw(
        st.lists(
            st.integers(0, len(lengths) - 1).flatmap(
                lambda d: st.tuples(st.just(d), st.integers(0, lengths[d] - 1))
            ),
            max_size=5,
        )
    )
    starts = np.concatenate([[0], np.cumsum(lengths)])
    document_N = np.array([d for d, _ in blocks], dtype=np.int64)
    label_NB, labelled_NB = block_labels(
        np.concatenate(documents),
        np.concatenate(masks),
        starts[document_N],
        starts[document_N + 1],
        np.array([a for _, a in blocks], dtype=np.int64),
        block,
        *([] if offset == 0 else [offset]),
    )
    assert label_NB.shape == labelled_NB.shape == (len(blocks), block)
    for n, (d, a) in enumerate(blocks):
        for k in range(block):
            place = a + k + offset
            inside = place < lengths[d]
            assert label_NB[n, k] == (documents[d][place] if inside else 0)
            assert labelled_NB[n, k] == (inside and place > a and masks[d][place])
