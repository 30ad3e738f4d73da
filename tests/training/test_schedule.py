"""The order of work: every window once, to its drafters in turn, evaluations and checkpoints between."""

from __future__ import annotations

from itertools import count

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dflash.training.schedule import Window, in_training_order


def windows(number, drafters, accumulation, epoch=0):
    rows = count()
    return [
        Window(
            epoch,
            "padded",
            [(np.array([next(rows)]), np.array([5])) for _ in range(drafters * accumulation)],
        )
        for _ in range(number)
    ]


held_out = st.integers(0, 4).map(lambda n: [(np.array([1000 + k]), np.array([3])) for k in range(n)])


@given(
    number=st.integers(0, 6),
    drafters=st.integers(1, 3),
    accumulation=st.integers(1, 3),
    held_out=held_out,
    evaluate=st.sets(st.integers(0, 6)),
    save=st.sets(st.integers(0, 6)),
)
def test_whoever_takes_it_in_turn_gets_whole_windows(
    number, drafters, accumulation, held_out, evaluate, save
):
    training = windows(number, drafters, accumulation)
    work = list(
        in_training_order(training, held_out, sorted(evaluate), drafters=drafters, save_after=sorted(save))
    )
    assert [w.id for w in work] == list(range(len(work)))
    for drafter in range(drafters):
        assert [w.turn for w in work if w.drafter == drafter] == list(
            range(len([w for w in work if w.drafter == drafter]))
        )
        # Reductions meet: every drafter closes the same windows and evaluations, in the same order.
        closes = [(w.purpose, w.window) for w in work if w.drafter == drafter and w.closes]
        assert [c for c in closes if c[0] != "save"] == [
            (w.purpose, w.window) for w in work if w.drafter == 0 and w.closes and w.purpose != "save"
        ]
    trained = [w for w in work if w.purpose == "train"]
    assert [int(w.rows_D[0]) for w in trained] == list(range(number * drafters * accumulation))
    expected = []
    for done in range(number + 1):
        if done:
            expected.append(("train", done - 1))
        expected += [("evaluate", done)] * (done in evaluate and bool(held_out))
        expected += [("save", done)] * (done in save)
    assert [(w.purpose, w.window) for w in work if w.closes and w.drafter == 0] == expected


@given(
    number=st.integers(0, 6),
    first=st.integers(0, 6),
    drafters=st.integers(1, 3),
    evaluate=st.sets(st.integers(0, 6)),
    save=st.sets(st.integers(0, 6)),
)
def test_going_on_gives_the_rest_of_the_same_order(number, first, drafters, evaluate, save):
    """After the checkpoint at ``first``, which what was due at that place came before."""
    first = min(first, number)

    def order(training, start, least):
        return [
            (w.purpose, w.window, w.drafter, w.rows_D.tolist())
            for w in in_training_order(
                training,
                [(np.array([1000]), np.array([3]))],
                [n for n in evaluate if n >= least],
                drafters=drafters,
                save_after=[n for n in save if n >= least],
                first=start,
            )
        ]

    training = windows(number, drafters, 2)
    whole = order(training, 0, 0)
    rest = order(training[first:], first, first + 1)
    assert rest == whole[len(whole) - len(rest) :]
    assert [w for w in whole[: len(whole) - len(rest)] if w[0] == "train" and w[1] >= first] == []


@given(number=st.integers(1, 6), stop=st.integers(0, 6), save=st.sets(st.integers(0, 6)))
def test_a_stop_ends_between_windows_with_one_checkpoint(number, stop, save):
    asked = count()
    work = list(
        in_training_order(
            windows(number, 2, 1), [], [], drafters=2, save_after=save, stop=lambda: next(asked) >= stop
        )
    )
    done = min(stop, number)
    assert len([w for w in work if w.purpose == "train"]) == 2 * done
    saved = [w.window for w in work if w.purpose == "save"]
    due = [n for n in sorted(save) if n <= done]
    assert saved == (due if stop >= number or done in save else [*due, done])
