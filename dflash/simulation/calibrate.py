"""Measure the stages on this machine and fit the cost model: a profile for ``hardware.cost_model``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from statistics import fmean, median
from time import perf_counter, thread_time
from typing import Any

import numpy as np
import torch

from dflash.batching.plan import IntArray, Layout
from dflash.config import Config
from dflash.data.sources import target_folder
from dflash.errors import UsageError
from dflash.pipeline.work import LoadedBatch
from dflash.simulation.cost import DrafterCost, LoadCost, TargetCost
from dflash.simulation.fit import fit
from dflash.simulation.hardware import fingerprint
from dflash.simulation.profile import Figure, Fitted, Measured, Profile
from dflash.simulation.shapes import BatchShapes, FloatArray
from dflash.simulation.sizes import load_sizes
from dflash.simulation.workbench import Workbench, shapes_of

QUANTILES = (0.0, 0.5, 0.9, 1.0)
"""of the lengths: micro-batches of samples about so long"""
SHARES = (0.25, 0.5, 1.0)
"""of the token budget"""
MIXED = 3
"""micro-batches of random samples for each layout, with the padding that those have"""
ROUNDS = 7
"""over all micro-batches, because a machine's speed drifts over seconds, and repeats of one would share it"""
ALTERNATIONS = 5
"""of workers alone and at once, for the same reason"""
REPEATS = 3
WARMUP = 3
_COPIED_BYTES = 2**25
_SAMPLED_ROWS = 400


@dataclass(frozen=True)
class Calibration:
    """What was measured, and how the fit does on it."""

    profile: Profile
    micro_batches: int
    seconds: float
    """that it took"""
    disturbed: float
    """share of the time that a worker alone did not get its core: others used it"""


def calibrate(
    config: Config,
    name: str,
    cores: int,
    progress: Callable[[str], None] = lambda line: None,
    loop_seconds: float = 1.5,
) -> Calibration:
    """Time every stage alone, then a target and a drafter at once.

    Args:
        cores: of the machine, which a CPU's workers share.
        progress: is told what comes next.
        loop_seconds: of each of fifteen loops that measure how workers slow each other down.

    Raises:
        UsageError: the store or the target cannot be opened, or the store is too small.
    """
    started = perf_counter()
    progress("loading the models")
    bench = Workbench.open(config)
    rows = bench.store.rows(held_out=False)
    if len(rows) < 2 * len(QUANTILES):
        raise UsageError(f"{bench.store.path} has {len(rows)} samples to train on: too few to measure with")
    layouts: tuple[Layout, ...] = ("padded", "packed")
    batches = {layout: _micro_batches(bench, rows, layout) for layout in layouts}
    for one in batches["padded"][:WARMUP]:
        bench.train(bench.features(one))
    stages = _stages(bench, batches, progress)
    progress("the end of a window")
    commit = _commit_seconds(bench, batches["padded"])
    progress("a target and a drafter at once")
    *slowdowns, disturbed = _slowdowns(bench, batches["padded"][-MIXED:], loop_seconds)
    own_device = bench.target.device.type != "cpu"
    shares = bench.shares(rows[:: max(1, len(rows) // _SAMPLED_ROWS)])
    source = f"measured on {datetime.now(UTC):%Y-%m-%d}"
    at_once = f"{source}: rates of a target and a drafter alone and at once"
    measured = Measured(
        sizes=fingerprint(load_sizes(str(target_folder(config.data)), config.drafter)),
        cores=None if own_device else cores,
        supervised_share=shares[0],
        label_share=min(1.0, shares[1]),
        **stages,
        optimizer_seconds=Figure(commit, f"{source}: median of {REPEATS} windows' ends"),
        copy_bandwidth=Figure(_copy_bandwidth(), f"{source}: copies of {_COPIED_BYTES >> 20} MiB in memory"),
        target_slowdown=Figure(slowdowns[0], at_once),
        drafter_slowdown=Figure(slowdowns[1], at_once),
    )
    summary = f"calibrated with store {config.data.store}, target {config.data.target}, {cores} cores"
    return Calibration(
        profile=Profile(name=name, summary=summary, measured=measured),
        micro_batches=sum(map(len, batches.values())),
        seconds=perf_counter() - started,
        disturbed=0.0 if own_device else disturbed,
    )


def _micro_batches(bench: Workbench, rows: IntArray, layout: Layout) -> list[LoadedBatch]:
    """Micro-batches of each length and size, and then a few of random samples."""
    budget = bench.config.batching.token_budget
    lengths = np.minimum(bench.store.lengths[rows], budget)
    by_length = np.argsort(lengths, kind="stable")
    chosen = []
    for quantile in QUANTILES:
        for share in SHARES:
            place = round(quantile * (len(rows) - 1))
            count = int(np.clip(share * budget // lengths[by_length[place]], 1, len(rows)))
            start = int(np.clip(place - count // 2, 0, len(rows) - count))
            chosen.append(_within(by_length[start : start + count], lengths, budget, layout))
    rng = np.random.default_rng(0)
    chosen += [_within(rng.permutation(len(rows)), lengths, budget, layout) for _ in range(MIXED)]
    return [bench.load(rows[samples], lengths[samples], layout) for samples in chosen]


def _within(samples: IntArray, lengths: IntArray, budget: int, layout: Layout) -> IntArray:
    """As many of the first samples as the token budget holds."""
    sizes = lengths[samples]
    tokens = (
        np.cumsum(sizes)
        if layout == "packed"
        else np.maximum.accumulate(sizes) * np.arange(1, len(sizes) + 1)
    )
    return samples[: max(1, int(np.searchsorted(tokens, budget, side="right")))]


def _stages(
    bench: Workbench, batches: dict[Layout, list[LoadedBatch]], progress: Callable[[str], None]
) -> dict[str, Fitted]:
    all_of_them = [one for of_layout in batches.values() for one in of_layout]
    outputs = [bench.features(one) for one in all_of_them]
    clock = _clock(bench)
    seconds_R3N = np.zeros((ROUNDS, 3, len(all_of_them)))
    order = np.random.default_rng(0)
    for number in range(ROUNDS):
        progress(f"{len(all_of_them)} micro-batches, round {number + 1} of {ROUNDS}")
        for n in order.permutation(len(all_of_them)):
            one = all_of_them[n]
            batch = one.batch
            seconds_R3N[number, :, n] = (
                _seconds(partial(bench.load, batch.rows, batch.lengths, batch.layout), thread_time),
                _seconds(partial(bench.features, one), clock),
                _seconds(partial(bench.train, outputs[n]), clock),
            )
    load_N, target_N, drafter_N = np.median(seconds_R3N, axis=0)
    loads: list[tuple[BatchShapes, FloatArray]] = []
    drafters: list[tuple[BatchShapes, FloatArray]] = []
    found, start = {}, 0
    for layout, of_layout in batches.items():
        shapes, own = shapes_of(of_layout), slice(start, start + len(of_layout))
        found[f"target_{layout}"] = _fitted(TargetCost.terms(shapes), target_N[own])
        loads.append((shapes, load_N[own]))
        drafters.append((shapes, drafter_N[own]))
        start = own.stop
    found["load"] = _both(LoadCost.terms, loads)
    found["drafter"] = _both(DrafterCost.terms, drafters)
    return found


def _both(
    terms: Callable[[BatchShapes], FloatArray], measured: Sequence[tuple[BatchShapes, FloatArray]]
) -> Fitted:
    rows = np.concatenate([terms(shapes) for shapes, _ in measured])
    seconds = np.concatenate([of_layout for _, of_layout in measured])
    some = rows[:, 0] > 0  # a micro-batch without anchors costs nothing and says nothing
    return _fitted(rows[some], seconds[some])


def _fitted(terms: FloatArray, seconds: FloatArray) -> Fitted:
    found = fit(terms, seconds)
    return Fitted(
        coefficients=list(found.coefficients),
        leave_one_out=found.error,
        largest_error=found.largest_error,
        source=f"{len(seconds)} micro-batches, medians of {ROUNDS} rounds",
    )


def _clock(bench: Workbench) -> Callable[[], float]:
    """On a CPU the thread's own time, in which nothing counts that takes the core away from it."""
    return thread_time if bench.target.device.type == "cpu" else perf_counter


def _seconds(action: Callable[[], Any], clock: Callable[[], float]) -> float:
    start = clock()
    action()
    return clock() - start


def _commit_seconds(bench: Workbench, batches: list[LoadedBatch]) -> float:
    output = bench.features(min(batches, key=lambda one: one.batch.input_ids.size))
    bench.train(output)
    bench.commit()
    seconds = []
    for _ in range(REPEATS):
        bench.train(output)
        seconds.append(_seconds(bench.commit, _clock(bench)))
    return median(seconds)


def _copy_bandwidth() -> float:
    source = torch.ones(_COPIED_BYTES // 4)
    goal = torch.empty_like(source)
    goal.copy_(source)
    return _COPIED_BYTES / median(_seconds(partial(goal.copy_, source), perf_counter) for _ in range(REPEATS))


def _slowdowns(bench: Workbench, batches: list[LoadedBatch], seconds: float) -> tuple[float, float, float]:
    """Rate alone / rate beside the other, of a target and of a drafter, never below 1; and the disturbance.

    Loops alone and at once take turns, so that a drift of the machine's speed cancels.
    """
    outputs = [bench.features(one) for one in batches]

    def target() -> None:
        for one in batches:
            bench.features(one)

    def drafter() -> None:
        for one in outputs:
            bench.train(one)
        bench.commit()

    loops = (target, drafter)
    alone: list[list[_Pace]] = [[], []]
    together: list[list[_Pace]] = [[], []]
    for turn in range(ALTERNATIONS):
        for number in ((0, 1), (1, 0))[turn % 2]:
            alone[number] += _paces([loops[number]], seconds)
        for number, pace in enumerate(_paces(loops, seconds)):
            together[number].append(pace)
    target_slowdown, drafter_slowdown = (
        max(1.0, fmean(one.rounds for one in own) / fmean(one.rounds for one in beside))
        for own, beside in zip(alone, together, strict=True)
    )
    busy = fmean(pace.busy for own in alone for pace in own)
    return target_slowdown, drafter_slowdown, max(0.0, 1 - busy)


@dataclass(frozen=True)
class _Pace:
    """Of a loop: rounds per second, and the share of the time in which its thread had a core."""

    rounds: float
    busy: float


def _paces(loops: Sequence[Callable[[], None]], seconds: float) -> list[_Pace]:
    """Run each loop in a thread of its own, all of them at once and none alone while another is measured."""
    paces: dict[int, _Pace] = {}
    ready = threading.Barrier(len(loops))
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            torch.set_num_threads(1)
            ready.wait()
            start, cpu, rounds = perf_counter(), thread_time(), 0
            while rounds == 0 or perf_counter() - start < seconds:
                loops[number]()
                rounds += 1
            elapsed = perf_counter() - start
            paces[number] = _Pace(rounds / elapsed, (thread_time() - cpu) / elapsed)
            while len(paces) < len(loops) and not failures:
                loops[number]()
        except BaseException as error:
            failures.append(error)
            ready.abort()

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(loops))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return [paces[number] for number in range(len(loops))]
