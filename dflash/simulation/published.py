"""What others have measured and published, for checks that nothing here was fitted to.

SpecForge, docs/benchmarks/domino-disaggregated-performance.md of its repository: a node of eight H200, target
Qwen3-8B, a DFlash-family drafter of 1.1B weights, micro-batches of two samples, eight of them in a window.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash.simulation.cost import CostModel
from dflash.simulation.pipeline import Seconds, Topology, simulate

ROWS = 2
BLOCK_SIZE = 16
ACCUMULATION = 8
DEPTH = 3
SERVER_TOKENS_PER_SECOND = 27_000.0
"""of one target; it was busy for 98 % of the time when it gave 50.1 samples/s"""
TOKENS_PER_SAMPLE = SERVER_TOKENS_PER_SECOND / 50.1
SERVER_LAYERS = 36 / 34
"""a server runs all layers of a target, ours stop at the last feature"""
STEP_FIXED, STEP_PER_ANCHOR = 0.053, 0.73e-3
"""seconds of a trainer's forward and backward pass over a micro-batch, by anchors of one sample; their fit"""
OPTIMIZER_SECONDS = 1.3e-3


@dataclass(frozen=True)
class Published:
    """A measured rate."""

    targets: int
    drafters: int
    anchors: int
    samples_per_second: float


NODE = (Published(1, 7, 256, 50.1), Published(2, 6, 256, 39.0), Published(1, 7, 64, 56.7))
"""The last one is not stated but follows from what is."""


def from_step_times(of: Published) -> float:
    """Samples per second from the node's own isolated step times."""
    target = ROWS * TOKENS_PER_SAMPLE / SERVER_TOKENS_PER_SECOND
    step = STEP_FIXED + STEP_PER_ANCHOR * of.anchors
    return _rate(of, target, step, OPTIMIZER_SECONDS)


def from_operations(of: Published, cost: CostModel) -> float:
    """Samples per second from a profile's rates and the models' operations alone."""
    tokens, anchors = ROWS * TOKENS_PER_SAMPLE, ROWS * of.anchors
    target, drafter = cost.target["padded"], cost.drafter
    forward = target.fixed + target.per_token * tokens + target.per_square * ROWS * TOKENS_PER_SAMPLE**2
    seconds = (
        forward * SERVER_LAYERS,
        drafter.fixed
        + drafter.per_anchor * anchors
        + drafter.per_label * anchors * (BLOCK_SIZE - 1)
        + drafter.per_context * tokens
        + drafter.per_pair * anchors * TOKENS_PER_SAMPLE,
    )
    return _rate(of, *seconds, cost.commit_seconds(of.drafters))


def _rate(of: Published, target: float, drafter: float, commit: float) -> float:
    topology = Topology(of.targets, of.drafters, ACCUMULATION, DEPTH)
    batches, windows = 40 * topology.window_size, 20
    seconds = Seconds(np.full(batches, target), np.full(batches, drafter), commit)
    ends = simulate(topology, seconds).window_ends
    return ROWS * windows * topology.window_size / float(ends[-1] - ends[-1 - windows])
