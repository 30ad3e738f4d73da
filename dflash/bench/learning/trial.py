"""One learning trial: a strategy trained over the same samples as every other one, with nothing timed.

It runs without the pipeline, whose results do not depend on how it is driven, in one thread, so that as many
trials run at once as there are cores.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Coroutine
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dflash.batching import packing
from dflash.batching.plan import Layout
from dflash.bench.learning.curves import BINS, CurvePoint
from dflash.bench.learning.exchange import (
    FrozenPoint,
    LearningTrial,
    LearningTrialRequest,
    WindowPoint,
)
from dflash.bench.learning.frozen import measure_frozen
from dflash.bench.learning.sets import anchors_of, learning_sets
from dflash.bench.learning.weighting import LengthWeights, length_weights
from dflash.config import Config
from dflash.data.sources import open_store
from dflash.data.store import TokenStore
from dflash.errors import DflashError, TrialError, UsageError
from dflash.memory import keep_freed_memory
from dflash.models.drafter import Drafter
from dflash.models.features import FeatureBatch
from dflash.models.target import Target
from dflash.pipeline.stages import load, read_features
from dflash.pipeline.work import Counts, TargetOutput, Work
from dflash.plugin_manager import PluginManager
from dflash.training.frozen import Pool, loss_sums, sample_gradients
from dflash.training.models import Models, load_models
from dflash.training.schedule import (
    EVALUATION_EPOCH,
    EpochPlan,
    held_out_micro_batches,
    in_training_order,
    plan_epoch,
)
from dflash.training.step import DrafterStep, WindowResult

EVALUATIONS = 12
"""evaluations of the held-out samples on the way, evenly spaced in real tokens"""

T = TypeVar("T")
Int64 = NDArray[np.int64]


def learning_trial(request: LearningTrialRequest) -> LearningTrial:
    """Train one epoch of the seed's learning set and follow it; needs torch on one thread.

    Raises:
        PlanError: the strategy fails or its plan is wrong.
        NonFiniteError: the loss, the gradient or a weight is not finite; nothing more needs to be known.
        TrialError: the plan has no window, or there are no held-out samples to compare strategies by.
    """
    start = time.perf_counter()
    keep_freed_memory()
    config = lone_drafter(request.config)
    manager = PluginManager(blocked=request.blocked)
    arm = manager.arms(request.strategy)[0]
    store = open_store(config.data)
    rows, pool_rows = learning_sets(store, config, request.tokens, request.pool_tokens)
    drafters = request.config.pipeline.drafters
    epoch = plan_epoch(arm.strategy, arm.name, store, config, 0, drafters, rows)
    if not epoch.plan.windows:
        raise TrialError(f"{arm.name} plans no whole window of {request.tokens} tokens: train on more")
    models = load_models(config, store)
    run = _Run(config, store, models, epoch)
    plans: dict[str, EpochPlan | str] = {}
    for other in manager.arms(",".join(request.measured)) if request.measured else []:
        try:
            plans[other.name] = plan_epoch(other.strategy, other.name, store, config, 0, drafters, pool_rows)
        except DflashError as error:
            plans[other.name] = str(error)
    frozen: dict[str, list[FrozenPoint] | str] = {
        name: plan if isinstance(plan, str) else [] for name, plan in plans.items()
    }
    # The same samples at all three points, so that their features are computed once.
    pool = Pool(store, pool_rows, _cut(store, pool_rows, config), models.targets[0], config)
    first_weights = _digest(models.drafter)
    points = {0, max(1, round(epoch.plan.windows / 4)), epoch.plan.windows} if plans else set()
    for done in range(epoch.plan.windows + 1):
        if done:
            run.train_window(done - 1)
        if done in points:
            found = sample_gradients(models.drafter, models.head, pool, config)
            for name, plan in plans.items():
                measured = frozen[name]
                if isinstance(plan, EpochPlan) and isinstance(measured, list):
                    measured.append(measure_frozen(found, plan, config.training.seed))
    return LearningTrial(
        strategy=arm.name,
        seed=config.training.seed,
        plan_digests=[epoch.plan.digest()],
        first_weights=first_weights,
        windows=run.windows,
        curve=run.curve,
        counts=run.counts,
        diversity=_mean(run.diversities),
        cosine=_mean(run.cosines),
        weights=_weights(store, epoch, config),
        seconds=time.perf_counter() - start,
        frozen=frozen,
    )


def lone_drafter(config: Config) -> Config:
    """The same run with one drafter that takes all micro-batches of a window, and no bad sample forgiven.

    What a window's gradient is does not depend on how many drafters share it.
    """
    return msgspec.structs.replace(
        config,
        pipeline=msgspec.structs.replace(config.pipeline, drafters=1, targets=1),
        training=msgspec.structs.replace(config.training, max_bad_samples=0),
    )


class _Run:
    """A drafter on its way through the windows of a plan."""

    def __init__(self, config: Config, store: TokenStore, models: Models, epoch: EpochPlan) -> None:
        self.windows: list[WindowPoint] = []
        self.curve: list[CurvePoint] = []
        self.counts = Counts()
        self.diversities: list[float | None] = []
        self.cosines: list[float | None] = []
        self._config, self._store, self._models, self._epoch = config, store, models, epoch
        self._target = models.targets[0]
        self._step = DrafterStep(models.drafter, models.head, config, epoch.plan.windows, diversity=True)
        # A document's features do not depend on the layout, and end to end none of them is padding.
        self._layout: Layout = "packed" if _packs(self._target) else "padded"
        self._bins = _held_out_bins(store, config, self._target)
        tokens = int(epoch.lengths[epoch.plan.samples].sum())
        self._due = np.linspace(0, tokens, EVALUATIONS + 1).tolist()
        self._evaluate()

    def train_window(self, number: int) -> None:
        window = replace(self._epoch.window(number), layout=self._layout)
        result = None
        for work in in_training_order([window], [], []):
            result = _at_once(self._step(_features(work, self._store, self._config, self._target)))
        assert isinstance(result, WindowResult)
        self.counts = self.counts + result.counts
        self.windows.append(WindowPoint(result.counts.real_tokens, result.loss, result.gradient_norm))
        self.diversities.append(result.gradient_diversity)
        self.cosines.append(result.gradient_cosine)
        self._evaluate()

    def _evaluate(self) -> None:
        """If it is due."""
        tokens = self.counts.real_tokens
        if not self._due or tokens < self._due[0]:
            return
        self._due = [due for due in self._due if due > tokens]
        drafter, head = self._models.drafter, self._models.head
        sums = [loss_sums(drafter, head, batches, self._config) for batches in self._bins]
        if not all(weight for _, weight in sums):
            raise TrialError("held-out samples of some length have no label: raise data.held_out_samples")
        total = sum(loss for loss, _ in sums) / sum(weight for _, weight in sums)
        self.curve.append(CurvePoint(tokens, total, tuple(loss / weight for loss, weight in sums)))


def _features(work: Work, store: TokenStore, config: Config, target: Target) -> TargetOutput:
    return read_features(load(work, store, config.drafter, config.training.seed), target)


def _at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that waits for nobody, as a lone drafter's does."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise RuntimeError("a lone drafter waited for something")


def _packs(target: Target) -> bool:
    """Whether the target can run documents end to end."""
    try:
        target.packed_features(np.zeros((1, 2), np.int64), np.ones(2, np.int64))
    except UsageError:
        return False
    return True


def _held_out_bins(store: TokenStore, config: Config, target: Target) -> list[list[FeatureBatch]]:
    """The held-out samples by length, a third of them in each of BINS. Their features stay in memory."""
    chosen = held_out_micro_batches(store, config)
    if not chosen:
        raise TrialError(f"{store.path} holds out no sample by which strategies could be compared")
    rows, lengths = (np.concatenate(parts) for parts in zip(*chosen, strict=True))
    bins = []
    for places in np.array_split(np.argsort(lengths, kind="stable"), len(BINS)):
        offsets = packing.greedy(lengths, places, config.batching.token_budget)
        bins.append(
            [
                _features(_evaluation(rows[batch], lengths[batch]), store, config, target).features
                for batch in (places[start:end] for start, end in pairwise(offsets.tolist()))
            ]
        )
    return bins


def _evaluation(rows: Int64, lengths: Int64) -> Work:
    return Work(0, "evaluate", EVALUATION_EPOCH, 0, "padded", True, rows, lengths)


def _cut(store: TokenStore, rows: Int64, config: Config) -> Int64:
    """Lengths of rows, as a plan has them."""
    return np.minimum(store.lengths[rows], config.batching.token_budget)


def _weights(store: TokenStore, epoch: EpochPlan, config: Config) -> LengthWeights:
    plan = epoch.plan
    ends = plan.batch_offsets[plan.window_offsets].tolist()
    windows = [plan.samples[start:end] for start, end in pairwise(ends)]
    return length_weights(epoch.lengths, anchors_of(store, plan.ids, config), windows)


def _digest(drafter: Drafter) -> str:
    sha256 = hashlib.sha256()
    for name, weight in drafter.named_parameters():
        sha256.update(name.encode() + weight.detach().cpu().numpy().tobytes())
    return sha256.hexdigest()


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
