"""What is measured: every metric's name, unit, better side and gate rule, and how numbers are written.

Names are final: later versions add metrics and rename none. Values are in SI base units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from dflash.batching.composition import MEASURES
from dflash.errors import UsageError

Direction = Literal["higher", "lower", "none"]
GateRule = Literal["paired", "exact", "learning", "none"]

# Digits are grouped by a narrow no-break space and signs are true minus signs; no locale decides anything.
_GROUP = "\u202f"
_MINUS = "\u2212"

#: Stands where there is no figure.
ABSENT = "\u2013"


@dataclass(frozen=True)
class Metric:
    """One number of a trial or a plan.

    ``direction`` is the better side. ``gate_rule`` says what may decide about it: ``paired`` for a clock,
    which only adjacent trials can compare; ``exact`` for what the same seed must reproduce to the last bit;
    ``learning`` for what learning trials measure, over seeds; ``none`` for what the trials of one seed cannot
    decide. ``tolerance`` is the loss that a gate without a percentage must not miss, a share of the partner's
    value.
    """

    name: str
    unit: str
    direction: Direction
    summary: str
    gate_rule: GateRule
    tolerance: float | None = None


_TRIAL = (
    Metric("tok_s", "tokens/s", "higher", "real tokens per second", "paired"),
    Metric("padded_tok_s", "tokens/s", "higher", "padded tokens per second", "paired"),
    Metric("loss_tok_s", "tokens/s", "higher", "loss tokens per second", "paired"),
    Metric("padding_efficiency", "1", "higher", MEASURES["padding_efficiency"].summary, "exact"),
    Metric(
        "anchor_slot_efficiency",
        "1",
        "higher",
        "slots of the trained blocks that carry a label / all but the anchors'",
        "exact",
    ),
    Metric("label_coverage", "1", "higher", "share of the supervised tokens that a block predicts", "exact"),
    Metric("final_loss", "nats/token", "lower", "held-out loss after the trial's windows", "none"),
    Metric(
        "gradient_diversity",
        "1",
        "higher",
        "Yin et al. (arXiv 1706.05699) over a window's micro-batches",
        "none",
    ),
    Metric("target_utilisation", "1", "none", "share of the time that the target workers compute", "none"),
    Metric("drafter_utilisation", "1", "none", "share of the time that the drafter workers compute", "none"),
    Metric("window_seconds", "s", "lower", "wall time per measured window", "paired"),
    Metric(
        "cpu_seconds", "s", "lower", "CPU time of the trial's process over the measured windows", "paired"
    ),
    Metric("peak_memory_bytes", "B", "lower", "most memory that the trial's process held", "none"),
    Metric(
        "peak_gpu_memory_bytes", "B", "lower", "most memory that the trial's tensors held on a GPU", "none"
    ),
    Metric("wall_seconds", "s", "none", "wall time of the measured windows", "none"),
    Metric("predicted_tok_s", "tokens/s", "none", "what this machine's profile foretells of tok_s", "none"),
    Metric("real_tokens", "tokens", "none", "real tokens of the measured windows", "exact"),
    Metric("padded_tokens", "tokens", "none", "padded tokens of the measured windows", "exact"),
    Metric("loss_tokens", "tokens", "none", "loss tokens of the measured windows", "exact"),
    Metric("anchor_slots", "1", "none", "blocks that the measured windows train", "exact"),
    Metric(
        "target_flops_per_token",
        "FLOP/token",
        "lower",
        "of the target's forward passes over the epoch's plan / its real tokens, by formula",
        "exact",
    ),
    Metric(
        "drafter_flops_per_token",
        "FLOP/token",
        "none",
        "of the drafter's passes over the measured windows / their real tokens, by formula",
        "exact",
    ),
)

# What a plan alone gives is the same for the same seed, to the last bit.
_PLAN = (
    *(Metric(one.name, one.unit, one.direction, one.summary, "exact") for one in MEASURES.values()),
    Metric("plan_seconds", "s", "lower", "time to plan an epoch and certify it, in one thread", "none"),
)

#: The metrics of a plan alone, by name.
PLAN_METRICS: dict[str, Metric] = {metric.name: metric for metric in _PLAN}

#: Every known metric by name; those of a trial come first.
METRICS: dict[str, Metric] = {metric.name: metric for metric in _TRIAL} | PLAN_METRICS

#: The metrics of learning trials by name, in the order in which they are shown. The replicates are seeds.
LEARNING_METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            "design_effect",
            "1",
            "lower",
            "variance of window gradients x tokens / that of random windows of the same samples",
            "learning",
            0.25,
        ),
        Metric("loss_design_effect", "1", "lower", "the same of the windows' losses", "learning", 0.65),
        Metric(
            "gradient_diversity",
            "1",
            "higher",
            "Yin et al. (arXiv 1706.05699), at frozen weights",
            "learning",
            0.05,
        ),
        Metric(
            "final_loss", "nats/token", "lower", "held-out loss at the end of the trial", "learning", 0.01
        ),
        Metric(
            "time_to_loss",
            "tokens",
            "lower",
            "real tokens to the reference's loss at 80 % of its run",
            "learning",
            0.10,
        ),
        Metric(
            "loss_spikes",
            "1",
            "lower",
            "spikes of loss or gradient norm, all seeds together",
            "learning",
            0.0,
        ),
        Metric(
            "forgetting",
            "nats/token",
            "lower",
            "rise of the worst length bin over the last quarter, beyond the mean of all",
            "learning",
            0.01,
        ),
    )
}


def metric(name: str) -> Metric:
    """The metric called ``name``; UsageError with the names that exist."""
    try:
        return METRICS[name]
    except KeyError:
        raise UsageError(f"unknown metric {name!r}; known: {', '.join(METRICS)}") from None


def gate_metric(name: str) -> Metric:
    """What a gate on ``name`` is about: where trials of one seed decide nothing, learning trials may.

    Raises UsageError for an unknown name, and for a metric that nothing in a run can decide.
    """
    known = [one.name for one in METRICS.values() if one.gate_rule != "none"] + list(LEARNING_METRICS)
    found = METRICS.get(name)
    if found is None or found.gate_rule == "none":
        found = LEARNING_METRICS.get(name, found)
    if found is None:
        raise UsageError(f"unknown metric {name!r}; gates are for {', '.join(known)}")
    if found.gate_rule == "none":
        raise UsageError(f"trials of one seed cannot decide {name}; gates are for {', '.join(known)}")
    return found


def number(value: float, digits: int | None = None) -> str:
    """``value`` with ``digits`` decimals, or else to three significant digits, and whole from 100 up."""
    if digits is None:
        magnitude = math.floor(math.log10(abs(value))) if value else 0
        digits = max(0, 2 - magnitude)
    text = f"{value:,.{digits}f}".replace(",", _GROUP)
    if text.startswith("-"):
        return _MINUS + text[1:] if any("1" <= digit <= "9" for digit in text) else text[1:]
    return text


def percent(share: float, digits: int | None = None) -> str:
    """A share of one as ``93.1 %``, with as many decimals as it takes if ``digits`` is None: ``98 %``."""
    return f"{100 * share:g} %" if digits is None else f"{number(100 * share, digits)} %"


def signed_percent(ratio: float) -> str:
    """A ratio as its signed change in percent, without the unit: 0.926 is ``−7.4``."""
    text = number(100 * (ratio - 1), 1)
    return text if text.startswith(_MINUS) or text == "0.0" else f"+{text}"


def change(name: str, ratio: float, low: float | None = None, high: float | None = None) -> str:
    """The change of a metric in words: ``tok_s 6.1 % lower [−7.4, −4.9]``, from the ratio and its bounds."""
    size = percent(abs(ratio - 1), 1)
    words = "unchanged" if size == percent(0, 1) else f"{size} {'higher' if ratio > 1 else 'lower'}"
    if low is None or high is None:
        return f"{name} {words}"
    return f"{name} {words} [{signed_percent(low)}, {signed_percent(high)}]"
