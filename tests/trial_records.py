"""Trials whose figures are given."""

from __future__ import annotations

from typing import Any

from dflash.bench.results import Trial


def measured(pair: int, arm: str, tok_s: float, **changes: Any) -> Trial:
    metrics = {
        "tok_s": tok_s,
        "window_seconds": 1000 / tok_s,
        "padding_efficiency": 0.9,
        "final_loss": 5.25,
        "peak_memory_bytes": None,
    }
    record: dict[str, Any] = {
        "pair": pair,
        "slot": 0,
        "arm": arm,
        "seed": 0,
        "status": "ok",
        "metrics": metrics | changes.pop("metrics", {}),
        "losses": [6.0, 5.5],
        "plan_digest": "d1",
    }
    return Trial(**record | changes)


def failed(pair: int, arm: str, error: str = "PlanError: sample 3 twice") -> Trial:
    return Trial(pair=pair, slot=1, arm=arm, seed=0, status="failed", error=error)


def duel(ratios: list[float], arms: tuple[str, str] = ("random", "bucketed")) -> list[Trial]:
    """Pairs of a drifting machine, in ABBA order."""
    trials = []
    for pair, ratio in enumerate(ratios):
        base = 1000.0 * 1.5**pair
        both = [measured(pair, arms[0], base), measured(pair, arms[1], base * ratio, slot=1)]
        trials += both[::-1] if pair % 2 else both
    return trials
