"""Floating-point operations of the models, by formula: exact integers that no clock enters.

A product of an m x k and a k x n matrix counts as 2 * m * k * n, attention as its two products over the
full square, masked half included, and everything else as nothing; so does torch's ``FlopCounterMode``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dflash.config import Config
from dflash.data.sources import target_folder
from dflash.data.store import TokenStore
from dflash.models.shape import DrafterShape, read_json, shape_for_target
from dflash.pipeline.stages import load
from dflash.pipeline.work import Work
from dflash.training.schedule import Window


@dataclass(frozen=True)
class Sizes:
    """Of both models; ``target`` is its config.json."""

    target: Mapping[str, Any]
    drafter: DrafterShape

    @classmethod
    def of(cls, config: Config) -> Sizes:
        """Of the models that a run with these settings trains with."""
        folder = target_folder(config.data)
        return cls(read_json(folder / "config.json"), shape_for_target(folder, config.drafter))


def window_drafter_flops(window: Window, store: TokenStore, config: Config, sizes: Sizes) -> int:
    """Of the drafter's passes over one window. Draws its anchors, which any process draws alike."""
    total = 0
    for rows, lengths in window.micro_batches:
        if not len(rows):
            continue
        work = Work(0, "train", window.epoch, 0, window.layout, True, rows, lengths)
        loaded = load(work, store, config.drafter, config.training.seed)
        blocks, labels = loaded.counts.anchor_slots, loaded.counts.loss_tokens
        seen = int(loaded.slots.position_N.sum())
        total += drafter_flops(sizes.drafter, int(lengths.sum()) if blocks else 0, blocks, labels, seen)
    return total


def window_target_flops(window: Window, sizes: Sizes) -> int | None:
    """Of the target's passes over one window; None as in :func:`target_flops`."""
    computed = [
        np.full(len(lengths), lengths.max(initial=0)) if window.layout == "padded" else lengths
        for _, lengths in window.micro_batches
    ]
    lengths = np.concatenate(computed)
    return target_flops(sizes, int(lengths.sum()), int((lengths * lengths).sum()))


def target_flops(sizes: Sizes, tokens: int, squared_lengths: int) -> int | None:
    """Of the target's forward passes, up to the last layer whose output is read.

    Args:
        tokens: that the target computes, padding included.
        squared_lengths: sum over the rows, or over packed documents, of the length squared.

    None for a mixture of experts, whose work its sizes alone do not tell.
    """
    if any("expert" in key for key in sizes.target):
        return None
    shape = sizes.drafter
    layers = shape.target_layer_ids[-1] + 1
    forward = 3 * _product(shape.hidden_size, sizes.target["intermediate_size"])
    return layers * (tokens * (_projections(shape) + forward) + squared_lengths * _scores(shape))


def drafter_flops(
    shape: DrafterShape, context_tokens: int, blocks: int, labels: int, prefix_tokens: int
) -> int:
    """Of the drafter's forward and backward passes.

    A backward pass costs twice the forward pass, except that nobody asks for the gradient of the features
    below ``fc``, and the head is frozen.

    Args:
        context_tokens: real tokens of the micro-batches that have blocks.
        blocks: that are trained.
        labels: that reach the head, those with a nonzero weight.
        prefix_tokens: sum over the blocks of the context positions that each one sees.
    """
    hidden, size = shape.hidden_size, shape.block_size
    features = context_tokens * _product(len(shape.target_layer_ids) * hidden, hidden)
    context = context_tokens * 2 * _product(hidden, shape.kv_heads * shape.head_dim)
    per_token = _projections(shape) + 3 * _product(hidden, shape.intermediate_size)
    scores = size * (prefix_tokens + blocks * size) * _scores(shape)
    layers = shape.layers * (context + blocks * size * per_token + scores)
    head = labels * _product(hidden, shape.vocab_size)
    return 2 * features + 3 * layers + 2 * head


def _product(inner: int, outer: int) -> int:
    """For each row that is multiplied by an inner x outer matrix."""
    return 2 * inner * outer


def _projections(shape: DrafterShape) -> int:
    """Queries, keys, values and the output of attention, for each token."""
    own, shared = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return 2 * _product(shape.hidden_size, own) + 2 * _product(shape.hidden_size, shared)


def _scores(shape: DrafterShape) -> int:
    """For each pair of a query's and a key's position: the score, and the value that it weighs."""
    return 2 * _product(shape.heads, shape.head_dim)
