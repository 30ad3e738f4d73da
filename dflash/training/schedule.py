"""The order of work of a run: windows of each epoch's plan, held-out evaluations between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count, pairwise

import numpy as np
from numpy.typing import NDArray

from dflash.batching import packing, windows
from dflash.batching.plan import BatchPlan, Layout, PlanRequest, Strategy
from dflash.batching.planning import make_plan
from dflash.config import Config
from dflash.data.store import TokenStore
from dflash.errors import UsageError
from dflash.pipeline.work import Purpose, Work

EVALUATION_EPOCH = 0
"""Held-out samples keep the anchors of this epoch for ever, so that two evaluations can be compared."""

MicroBatches = list[tuple[NDArray[np.int64], NDArray[np.int64]]]
"""Store rows and lengths of each micro-batch of a window."""


@dataclass(frozen=True)
class Window:
    """The micro-batches of one optimizer step, in the order in which the drafters are given them."""

    epoch: int
    layout: Layout
    micro_batches: MicroBatches


@dataclass(frozen=True)
class EpochPlan:
    """A certified plan of one epoch and the lengths that it was made for."""

    plan: BatchPlan
    lengths: NDArray[np.int64]
    request: PlanRequest

    def window(self, number: int) -> Window:
        """A window of the plan, with store rows."""
        assigned = windows.assign(
            self.plan, number, self.request.drafters, self.lengths, self.request.attention_length
        )
        chosen = (self.plan.batch(int(batch)) for batch in assigned.ravel())
        return Window(
            epoch=self.request.epoch,
            layout=self.plan.layout,
            micro_batches=[(self.plan.ids[samples], self.lengths[samples]) for samples in chosen],
        )


def plan_epoch(
    strategy: Strategy,
    name: str,
    store: TokenStore,
    config: Config,
    epoch: int,
    drafters: int = 1,
    rows: NDArray[np.int64] | None = None,
) -> EpochPlan:
    """Plan one epoch of a store's training samples, or of those in ``rows``, and certify it.

    Raises:
        PlanError: the strategy fails or its plan is wrong.
        UsageError: the store has nothing to train on.
    """
    batching = config.batching
    request = PlanRequest(
        token_budget=batching.token_budget,
        seed=config.training.seed,
        epoch=epoch,
        drafters=drafters,
        accumulation=batching.accumulation,
        tail=batching.tail,
    )
    rows = store.rows(held_out=False) if rows is None else rows
    if not len(rows):
        raise UsageError(f"{store.path} has no sample to train on")
    plan, lengths = make_plan(
        strategy, store.lengths[rows], request, ids=rows, overlong=config.data.overlong, name=name
    )
    return EpochPlan(plan, lengths, request)


def held_out_micro_batches(store: TokenStore, config: Config) -> MicroBatches:
    """Held-out samples spread evenly over the lengths, in micro-batches within the budget; may be none.

    The same for every strategy and seed.
    """
    rows = store.rows(held_out=True)
    lengths = np.minimum(store.lengths[rows], config.batching.token_budget)
    by_length = np.argsort(lengths, kind="stable")
    count = min(config.data.held_out_samples, len(rows))
    if not count:
        return []
    chosen = by_length[(2 * np.arange(count) + 1) * len(rows) // (2 * count)]
    offsets = packing.greedy(lengths, chosen, config.batching.token_budget)
    return [(rows[chosen[start:end]], lengths[chosen[start:end]]) for start, end in pairwise(offsets)]


def in_training_order(
    training: Iterable[Window],
    held_out: MicroBatches,
    evaluate_after: Iterable[int],
    *,
    drafters: int = 1,
    save_after: Iterable[int] = (),
    first: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Work]:
    """Number the work of a run: its windows, and evaluations and checkpoints where they are asked for.

    A window's micro-batches go to the drafters in turn, as the plan's assignment emits them. Held-out samples
    are padded whatever the plan's layout is.

    Args:
        evaluate_after, save_after: counts of windows, ascending; 0 is before the first. An evaluation comes
            before a checkpoint at the same place, so that a checkpoint has all that came before it.
        first: number of the first window of ``training``.
        stop: asked before every window; True ends the run there with a checkpoint.
    """
    numbers, turns = count(), [count() for _ in range(drafters)]
    evaluations, saves = set(evaluate_after) if held_out else set(), set(save_after)

    def numbered(purpose: Purpose, place: int, window: Window) -> Iterator[Work]:
        last = len(window.micro_batches) - drafters
        for index, (rows, lengths) in enumerate(window.micro_batches):
            drafter = index % drafters
            yield Work(
                id=next(numbers),
                drafter=drafter,
                turn=next(turns[drafter]),
                purpose=purpose,
                epoch=window.epoch,
                window=place,
                layout=window.layout,
                closes=index >= last,
                rows_D=rows,
                lengths_D=lengths,
            )

    def save(done: int) -> Work:
        return Work(next(numbers), "save", 0, done, "padded", True, *_NOTHING, turn=next(turns[0]))

    def after(done: int) -> Iterator[Work]:
        if done in evaluations:
            yield from numbered("evaluate", done, evaluated)
        if done in saves:
            yield save(done)

    # Every drafter has a last micro-batch of an evaluation.
    missing = max(0, drafters - len(held_out))
    evaluated = Window(EVALUATION_EPOCH, "padded", [*held_out, *[_NOTHING] * missing])
    yield from after(first)
    for number, window in enumerate(training, start=first):
        if stop():
            if number not in saves:
                yield save(number)
            return
        yield from numbered("train", number, window)
        yield from after(number + 1)


_NOTHING = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
