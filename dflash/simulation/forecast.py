"""What a plan will do on a machine: rates, who waits for whom, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dflash.batching.plan import BatchPlan, IntArray, PlanRequest
from dflash.errors import PlanError
from dflash.simulation.cost import CostModel
from dflash.simulation.pipeline import Seconds, Topology, simulate
from dflash.simulation.shapes import AnchorRule, BatchShapes, plan_shapes
from dflash.simulation.spans import MOST_MICRO_BATCHES, Estimate, estimate


@dataclass(frozen=True)
class Forecast:
    """Predicted figures of one epoch. Rates are per second of wall time; shares are of it."""

    tok_s: float
    """real tokens"""
    padded_tok_s: float
    padding_efficiency: float
    window_seconds: float
    epoch_seconds: float
    model_error: float
    """relative, of the rates: what the cost model admits to"""
    span_error: float
    """relative, of the rates: 95 % bound of what simulating a part instead of all of it misses"""
    targets: list[dict[str, float]]
    """of each, the shares busy, blocked and starved"""
    drafters: list[dict[str, float]]
    """of each, the shares busy, commit, barrier and starved"""
    ready_mean: float
    """micro-batches whose features wait for their drafter"""
    ready_peak: int
    in_flight_mean: float
    windows: int
    simulated_windows: int

    @property
    def error(self) -> float:
        """Relative error of the rates in all."""
        return self.model_error + self.span_error

    def interval(self, rate: float) -> tuple[float, float]:
        """Where a rate of this forecast may lie."""
        return rate / (1 + self.error), rate * (1 + self.error)

    @property
    def target_utilisation(self) -> float:
        return float(np.mean([one.get("busy", 0.0) for one in self.targets]))

    @property
    def drafter_utilisation(self) -> float:
        """Forward and backward passes; the ends of windows are not among them."""
        return float(np.mean([one.get("busy", 0.0) for one in self.drafters]))


def forecast(
    plan: BatchPlan,
    lengths: IntArray,
    request: PlanRequest,
    cost: CostModel,
    rule: AnchorRule,
    topology: Topology,
    most: int = MOST_MICRO_BATCHES,
) -> Forecast:
    """Predict an epoch.

    Args:
        lengths: int64[n], those that the plan was made for.
        most: micro-batches to simulate, see ``spans.estimate``.

    Raises:
        PlanError: the plan has no window.
    """
    if not plan.windows:
        raise PlanError("the plan has no window: there are too few samples to predict anything")
    shapes = plan_shapes(plan, lengths, request, rule)
    found = estimate(topology, stage_seconds(shapes, cost, topology), most)
    real, padded = int(shapes.real_tokens.sum()), int(shapes.target_tokens.sum())
    return Forecast(
        tok_s=real / found.seconds,
        padded_tok_s=padded / found.seconds,
        padding_efficiency=real / padded,
        window_seconds=found.seconds / plan.windows,
        epoch_seconds=found.seconds,
        model_error=cost.error,
        span_error=found.error,
        targets=_shares([one.targets for one in found.timelines]),
        drafters=_shares([one.drafters for one in found.timelines]),
        ready_mean=_weighted([one.ready_mean for one in found.timelines], found),
        ready_peak=max(one.ready_peak for one in found.timelines),
        in_flight_mean=_weighted([one.in_flight_mean for one in found.timelines], found),
        windows=plan.windows,
        simulated_windows=found.windows,
    )


def foretell_windows(
    shapes: BatchShapes, cost: CostModel, topology: Topology, order: Sequence[int], warmup: int, measured: int
) -> float:
    """Real tokens per second of a trial: windows ``order`` of a plan, the first ``warmup`` not counted.

    Counted from the last commit of the warm-up to that of the last measured window, as a trial counts.
    """
    size = topology.window_size
    batches: NDArray[np.int64] = (np.array(order)[:, None] * size + np.arange(size)).ravel()
    chosen = shapes.take(batches)
    ends = simulate(topology, stage_seconds(chosen, cost, topology)).window_ends
    counted = slice(warmup * size, (warmup + measured) * size)
    seconds = ends[warmup + measured - 1] - (ends[warmup - 1] if warmup else 0.0)
    return float(chosen.real_tokens[counted].sum() / seconds)


def stage_seconds(shapes: BatchShapes, cost: CostModel, topology: Topology) -> Seconds:
    """Seconds of every micro-batch on every stage."""
    load = cost.load.seconds(shapes)
    return Seconds(
        target=cost.target_seconds(shapes),
        drafter=cost.drafter.seconds(shapes),
        commit=cost.commit_seconds(topology.drafters),
        load=load if load.any() else None,
        transfer=cost.copy_seconds(shapes),
        slowdown={"target": cost.target_slowdown, "drafter": cost.drafter_slowdown},
    )


def _shares(timelines: list[list[dict[str, float]]]) -> list[dict[str, float]]:
    """Per worker, its seconds over all timelines as shares."""
    shares = []
    for worker in zip(*timelines, strict=True):
        totals = {
            name: sum(one.get(name, 0.0) for one in worker) for name in {k: 0 for one in worker for k in one}
        }
        wall = sum(totals.values())
        shares.append({name: seconds / wall if wall else 0.0 for name, seconds in totals.items()})
    return shares


def _weighted(values: list[float], found: Estimate) -> float:
    return float(np.average(values, weights=found.weights))
