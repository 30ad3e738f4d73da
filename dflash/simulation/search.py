"""The fastest way to run, among those that mix lengths well enough and fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dflash.batching import mixing
from dflash.batching.composition import measure
from dflash.batching.plan import BatchPlan, IntArray, PlanRequest, Strategy
from dflash.batching.planning import make_plan
from dflash.errors import PlanError
from dflash.simulation import hardware
from dflash.simulation.analytic import Attention
from dflash.simulation.forecast import foretell_windows, stage_seconds
from dflash.simulation.memory import memory
from dflash.simulation.pipeline import Topology
from dflash.simulation.profile import Profile
from dflash.simulation.shapes import plan_shapes
from dflash.simulation.sizes import ModelSizes
from dflash.simulation.spans import window_bounds

_LEAST_WINDOWS = 8
"""below these a plan of the drawn samples says nothing about a steady run"""


@dataclass(frozen=True)
class Space:
    """What may be chosen; every axis in ascending order."""

    topologies: Sequence[tuple[int, int]]
    accumulations: Sequence[int]
    depths: Sequence[int]
    token_budgets: Sequence[int]


@dataclass(frozen=True)
class Choice:
    """One point of a space, with a strategy."""

    strategy: str
    topology: tuple[int, int]
    accumulation: int
    depth: int
    token_budget: int


@dataclass(frozen=True)
class Judged:
    """A choice and what is predicted of it."""

    choice: Choice
    tok_s: float
    variance_ratio: float
    """of window mean length to that of random draws: the design effect that a plan alone shows"""
    padding_efficiency: float


class Search:
    """Climbs from the middle of the space to the best neighbour, for each strategy on its own.

    Speed is predicted from a random part of the samples. A choice whose busiest stage alone is slower than
    what has been found is not simulated.
    """

    def __init__(
        self,
        profile: Profile,
        sizes: ModelSizes,
        attention: Attention,
        lengths: IntArray,
        *,
        seed: int,
        samples: int,
    ) -> None:
        self._profile, self._sizes, self._seed = profile, sizes, seed
        self._cost = hardware.cost_model(profile, sizes, attention)
        self._rule = hardware.anchor_rule(profile, sizes.drafter)
        self._eager_length = int(lengths.max()) if attention == "eager" else 0
        rng = np.random.Generator(np.random.PCG64(seed))
        self._lengths = rng.permutation(lengths)[:samples]
        self._plans: dict[Any, tuple[BatchPlan, IntArray] | None] = {}

    def run(self, name: str, strategy: Strategy, space: Space) -> Iterator[Judged]:
        """Every choice with this strategy that was worth a simulation; the last need not be the best."""
        axes = (space.topologies, space.accumulations, space.depths, space.token_budgets)
        place = [len(axis) // 2 for axis in axes]
        seen: set[tuple[int, ...]] = set()
        best = 0.0
        moved = True
        while moved:
            moved = False
            for neighbour in _neighbours(place, axes):
                if neighbour in seen:
                    continue
                seen.add(neighbour)
                values: Any = [axis[at] for axis, at in zip(axes, neighbour, strict=True)]
                judged = self._judge(Choice(name, *values), strategy, best)
                if judged is None:
                    continue
                yield judged
                if judged.tok_s > best:
                    best, place, moved = judged.tok_s, list(neighbour), True

    def _judge(self, choice: Choice, strategy: Strategy, best: float) -> Judged | None:
        """None if it does not fit, cannot be planned, or cannot be better than ``best``."""
        targets, drafters = choice.topology
        if not self._fits(choice):
            return None
        request = PlanRequest(
            token_budget=choice.token_budget,
            seed=self._seed,
            epoch=0,
            drafters=drafters,
            accumulation=choice.accumulation,
            tail="drop",
        )
        planned = self._plan(choice, strategy, request)
        if planned is None or planned[0].windows < _LEAST_WINDOWS:
            return None
        plan, lengths = planned
        topology = Topology(
            targets, drafters, choice.accumulation, choice.depth, cores=hardware.cores(self._profile)
        )
        shapes = plan_shapes(plan, lengths, request, self._rule)
        bound = (
            shapes.real_tokens.sum()
            / window_bounds(topology, stage_seconds(shapes, self._cost, topology)).sum()
        )
        if bound <= best:
            return None
        warmup = plan.windows // 4
        rate = foretell_windows(
            shapes, self._cost, topology, range(plan.windows), warmup, plan.windows - warmup
        )
        counts = measure(plan, lengths)
        ratio = mixing.variance_ratio(lengths[plan.samples], counts.window_rows, counts.window_real_tokens)
        return Judged(choice, rate, ratio, counts.padding_efficiency)

    def _fits(self, choice: Choice) -> bool:
        rates, (targets, drafters) = self._profile.rates, choice.topology
        if rates is None:
            return True
        device = rates.memory_bytes.value
        slots = Topology(targets, drafters, choice.accumulation, choice.depth).slots
        needed = memory(self._sizes, choice.token_budget, device, drafters, slots, self._eager_length)
        return needed.fits

    def _plan(
        self, choice: Choice, strategy: Strategy, request: PlanRequest
    ) -> tuple[BatchPlan, IntArray] | None:
        # A plan depends on accumulation and drafters through their product alone.
        key = choice.strategy, choice.token_budget, request.window_size
        if key not in self._plans:
            whole = replace(request, drafters=1, accumulation=request.window_size)
            try:
                self._plans[key] = make_plan(
                    strategy, self._lengths, whole, overlong="truncate", name=choice.strategy
                )
            except PlanError:
                self._plans[key] = None
        return self._plans[key]


def pareto_front(judged: Sequence[Judged]) -> list[Judged]:
    """Those that no other one beats in both speed and variance ratio, the fastest first.

    A ratio below 1, evener than chance, counts as 1: nothing is gained by it.
    """
    front: list[Judged] = []
    for one in sorted(judged, key=lambda one: (-one.tok_s, max(1.0, one.variance_ratio))):
        if not front or max(1.0, one.variance_ratio) < max(1.0, front[-1].variance_ratio):
            front.append(one)
    return front


def best_of(judged: Sequence[Judged], most_variance: float) -> Judged | None:
    """The fastest whose variance ratio is at most this; None if there is none."""
    good = [one for one in judged if one.variance_ratio <= most_variance]
    return max(good, key=lambda one: one.tok_s, default=None)


def _neighbours(place: Sequence[int], axes: Sequence[Sequence[Any]]) -> Iterator[tuple[int, ...]]:
    yield tuple(place)
    for axis, values in enumerate(axes):
        for step in (1, -1):
            if 0 <= place[axis] + step < len(values):
                yield (*place[:axis], place[axis] + step, *place[axis + 1 :])
