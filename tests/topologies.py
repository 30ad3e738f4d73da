"""Runs of a few windows under any topology, with delays everywhere; other processes import this module."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dflash.config import Config
from dflash.data.sources import open_store
from dflash.pipeline import stages
from dflash.training.checkpoint import Origin, path_of, read_checkpoint
from dflash.training.models import ModelsApart, Staff, load_models
from dflash.training.plans import plan_run
from dflash.training.run import training_run
from dflash.training.schedule import held_out_micro_batches, in_training_order
from dflash.training.step import EvaluationResult, Saving, WindowResult

MICRO_BATCHES = 6
"""of a window, whatever the number of drafters"""
WINDOWS = 5
LONGEST_DELAY = 0.01
"""seconds; as long as a micro-batch takes, so that any order of arrival comes up"""


@dataclass(frozen=True)
class Topology:
    engine: str
    targets: int
    drafters: int
    prefetch: int = 1
    depth: int = 3

    def __str__(self) -> str:
        return f"{self.engine} {self.targets}:{self.drafters}, prefetch {self.prefetch}, depth {self.depth}"

    def of(self, config: Config) -> Config:
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return msgspec.structs.replace(
            config,
            pipeline=msgspec.structs.replace(config.pipeline, **fields),
            batching=msgspec.structs.replace(config.batching, accumulation=MICRO_BATCHES // self.drafters),
            training=msgspec.structs.replace(config.training, windows=WINDOWS),
        )


@dataclass(frozen=True)
class Delayed:
    """Loads a model whose every call takes a while longer, as chance will have it."""

    load: Callable[[], Any]
    seed: int

    def __call__(self) -> Any:
        loaded, chance = self.load(), random.Random(self.seed)
        if isinstance(loaded, tuple):
            loaded[0].register_forward_pre_hook(lambda *_: delay(chance))
            return loaded
        features = loaded.features

        def late(*arguments: Any) -> Any:
            delay(chance)
            return features(*arguments)

        loaded.features = late
        return loaded


@dataclass(frozen=True)
class DelayedStaff:
    staff: Staff
    seed: int

    def target_of(self, number: int) -> Callable[[], Any]:
        return Delayed(self.staff.target_of(number), self.seed + number)

    def drafter_of(self, rank: int) -> Callable[[], Any]:
        return Delayed(self.staff.drafter_of(rank), self.seed + 100 + rank)


def delay(chance: random.Random) -> None:
    time.sleep(chance.uniform(0, LONGEST_DELAY))


@dataclass(frozen=True)
class Outcome:
    """What a run did, all of it."""

    windows: list[WindowResult]
    evaluations: list[EvaluationResult]
    tensors: dict[str, bytes]
    """weights and moments at the end"""
    rows: list[list[int]]
    """store rows of each window, ascending"""
    anchors: dict[tuple[int, int], list[int]]
    """by epoch and store row, as they were drawn"""

    def exact(self) -> Any:
        """All that must be the same to the last bit for the same number of drafters."""
        windows = [
            (w.window, w.epoch, w.loss, w.weight, w.gradient_norm, w.learning_rate, w.accuracy_B, w.counts)
            for w in self.windows
        ]
        return windows, self.evaluations, self.tensors, self.rows, self.anchors


def run(
    config: Config, topology: Topology, folder: Path, monkeypatch: Any, seed: int | None = None
) -> Outcome:
    """Train ``WINDOWS`` windows; with a ``seed`` every stage takes its time now and then."""
    config = topology.of(config)
    store = open_store(config.data)
    plans = plan_run(config, store)
    staff: Staff = ModelsApart(config) if topology.engine == "process" else load_models(config, store)
    chance = random.Random(seed)
    rows: dict[int, list[int]] = {}
    anchors: dict[tuple[int, int], list[int]] = {}
    load = stages.load

    def late_feed():
        held_out = held_out_micro_batches(store, config)
        for work in in_training_order(
            plans.training_windows(),
            held_out,
            [0, WINDOWS],
            drafters=topology.drafters,
            save_after=[WINDOWS],
        ):
            if seed is not None:
                delay(chance)
            if work.purpose == "train":
                rows.setdefault(work.window, []).extend(work.rows_D.tolist())
            yield work

    def late_load(work, *arguments):
        if seed is not None:
            delay(chance)
        loaded = load(work, *arguments)
        slots = loaded.slots
        for document, row in enumerate(work.rows_D.tolist()):
            own = slots.position_N[slots.document_N == document].tolist()
            anchors[work.epoch, row] = own
        return loaded

    origin = Origin(
        fingerprint="", plan_digests=(), target_settings="", target_weights="", settings={}, rounding={}
    )
    with monkeypatch.context() as patch:
        patch.setattr(stages, "load", late_load)
        if seed is not None:
            staff = DelayedStaff(staff, seed)
        with training_run(
            config, store, staff, late_feed(), plans.total, diversity=True, saving=Saving(folder, origin)
        ) as training:
            results = list(training.results)
    tensors = read_checkpoint(path_of(folder, WINDOWS)).tensors
    return Outcome(
        windows=[result for result in results if isinstance(result, WindowResult)],
        evaluations=[result for result in results if isinstance(result, EvaluationResult)],
        tensors={name: np.asarray(tensor).tobytes() for name, tensor in tensors.items()},
        rows=[sorted(rows[window]) for window in range(WINDOWS)],
        anchors=anchors,
    )


def check_across_drafters(one: Outcome, other: Outcome) -> None:
    """What must hold whatever the number of drafters."""
    assert one.rows == other.rows
    assert one.anchors == other.anchors
    for mine, its in zip(one.windows, other.windows, strict=True):
        assert mine.counts == its.counts
        assert abs(mine.weight - its.weight) <= 1e-6 * its.weight
        assert abs(mine.loss - its.loss) <= 1e-5
        assert abs(mine.gradient_diversity - its.gradient_diversity) <= 1e-3 * its.gradient_diversity
    assert one.tensors != other.tensors or one is other, "equal to the last bit would be chance"
