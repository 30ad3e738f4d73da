"""Plans of several strategies through the simulated pipeline of one machine: no model, no training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from dflash.batching import mixing
from dflash.batching.composition import measure
from dflash.batching.plan import BatchPlan, IntArray, PlanRequest
from dflash.batching.planning import Overlong, make_plan
from dflash.bench import results
from dflash.bench.document import Document
from dflash.bench.metrics import Metric
from dflash.bench.plan_run import Samples
from dflash.errors import ExitCode, PlanError
from dflash.plugin_manager import Arm
from dflash.simulation import hardware
from dflash.simulation.analytic import Attention
from dflash.simulation.forecast import Forecast, forecast
from dflash.simulation.memory import Memory, memory
from dflash.simulation.pipeline import Topology
from dflash.simulation.profile import Profile
from dflash.simulation.sizes import ModelSizes

_PREDICTED = (
    Metric("tok_s", "tokens/s", "higher", "real tokens per second", "none"),
    Metric("padded_tok_s", "tokens/s", "higher", "padded tokens per second", "none"),
    Metric("padding_efficiency", "1", "higher", "real / padded tokens of the whole epoch's plan", "none"),
    Metric("variance_ratio", "1", "none", "variance of window mean length / of random draws", "none"),
    Metric("target_utilisation", "1", "none", "share of the time that the targets compute", "none"),
    Metric("drafter_utilisation", "1", "none", "share of the time that the drafters compute", "none"),
    Metric("window_seconds", "s", "lower", "time of a window", "none"),
    Metric("epoch_seconds", "s", "lower", "time of an epoch", "none"),
    Metric("device_seconds", "s", "lower", "time of an epoch x devices", "none"),
    Metric("epoch_cost", "price", "lower", "device hours x the price of one", "none"),
)

#: What a prediction says of an arm, by name.
PREDICTED: dict[str, Metric] = {metric.name: metric for metric in _PREDICTED}


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Everything about a run but its strategy."""

    profile: Profile
    sizes: ModelSizes
    topology: Topology
    attention: Attention = "fused"
    price: float | None = None
    """of a device for an hour"""


# RUF012 knows no msgspec.Struct by inheritance: a mutable default is copied for each instance.
class PredictedArm(results.Arm, frozen=True, kw_only=True):
    """One strategy's forecast; ``intervals`` are the model's error and the simulated part's together."""

    forecast: dict[str, Any] = {}  # noqa: RUF012


class PredictSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for."""

    token_budget: int
    accumulation: int
    targets: int
    drafters: int
    depth: int
    barrier: bool
    seed: int
    epoch: int
    model: str
    hardware: str
    attention: str
    max_anchors: int
    anchor_stride: int


class Prediction(Document, frozen=True, kw_only=True):
    """All forecasts, as their JSON shows them: a run's JSON, with what no trial has measured yet."""

    schema_version: int = results.SCHEMA_VERSION
    exit_code: ExitCode
    arms: list[PredictedArm]
    settings: PredictSettings
    data: results.Data
    memory: Memory | None
    """None where the profile does not say how much a device has"""


def run_predictions(
    arms: Sequence[Arm],
    samples: Samples,
    request: PlanRequest,
    scene: Scene,
    overlong: Overlong,
    started: Callable[[Arm], None],
    ended: Callable[[results.Arm], None],
) -> Prediction:
    """Predict every arm; ``started`` and ``ended`` are told of each.

    A strategy that cannot plan is an arm with an error, and the others go on. Raises PlanError if all of
    several fail for one reason.
    """
    predicted = []
    for arm in arms:
        started(arm)
        predicted.append(_predicted(arm, samples, request, scene, overlong))
        ended(predicted[-1])
    errors = [arm.error for arm in predicted if arm.error is not None]
    if len(predicted) > 1 and len(errors) == len(predicted) and len(set(errors)) == 1:
        raise PlanError(errors[0])
    longest = int(samples.lengths.max()) if scene.attention == "eager" else 0
    rates, topology, drafter = scene.profile.rates, scene.topology, scene.sizes.drafter
    return Prediction(
        exit_code=ExitCode.USAGE if errors else ExitCode.OK,
        arms=predicted,
        settings=PredictSettings(
            token_budget=request.token_budget,
            accumulation=request.accumulation,
            targets=topology.targets,
            drafters=topology.drafters,
            depth=topology.depth,
            barrier=topology.barrier,
            seed=request.seed,
            epoch=request.epoch,
            model=scene.sizes.name,
            hardware=scene.profile.name,
            attention=scene.attention,
            max_anchors=drafter.max_anchors,
            anchor_stride=drafter.anchor_stride,
        ),
        data=samples.data,
        memory=None
        if rates is None
        else memory(
            scene.sizes,
            request.token_budget,
            rates.memory_bytes.value,
            topology.drafters,
            topology.slots,
            longest,
        ),
    )


def predict_plan(
    plan: BatchPlan, lengths: IntArray, request: PlanRequest, scene: Scene
) -> tuple[Forecast, dict[str, float | None]]:
    """The forecast of a plan, and its metrics by the names of PREDICTED.

    Raises:
        PlanError: the plan has no window.
        UsageError: the profile was measured with other models.
    """
    cost = hardware.cost_model(scene.profile, scene.sizes, scene.attention)
    rule = hardware.anchor_rule(scene.profile, scene.sizes.drafter)
    found = forecast(plan, lengths, request, cost, rule, scene.topology)
    devices = scene.topology.targets + scene.topology.drafters
    counts = measure(plan, lengths)
    ratio = mixing.variance_ratio(lengths[plan.samples], counts.window_rows, counts.window_real_tokens)
    hours = found.epoch_seconds * devices / 3600
    return found, {
        "tok_s": found.tok_s,
        "padded_tok_s": found.padded_tok_s,
        "padding_efficiency": found.padding_efficiency,
        "variance_ratio": None if ratio != ratio else ratio,
        "target_utilisation": found.target_utilisation,
        "drafter_utilisation": found.drafter_utilisation,
        "window_seconds": found.window_seconds,
        "epoch_seconds": found.epoch_seconds,
        "device_seconds": found.epoch_seconds * devices,
        "epoch_cost": None if scene.price is None else hours * scene.price,
    }


def _predicted(
    arm: Arm, samples: Samples, request: PlanRequest, scene: Scene, overlong: Overlong
) -> PredictedArm:
    metrics: dict[str, float | None] = dict.fromkeys(PREDICTED)
    intervals: dict[str, tuple[float, float]] = {}
    details: dict[str, Any] = {}
    plan_facts: dict[str, Any] = {}
    error = None
    try:
        plan, lengths = make_plan(
            arm.strategy, samples.lengths, request, ids=samples.ids, overlong=overlong, name=arm.name
        )
        found, metrics = predict_plan(plan, lengths, request, scene)
        timed = ("tok_s", "padded_tok_s", "window_seconds", "epoch_seconds", "device_seconds", "epoch_cost")
        intervals = {name: found.interval(value) for name in timed if (value := metrics[name]) is not None}
        details = asdict(found)
        plan_facts = {"digest": plan.digest(), "layout": plan.layout, "windows": plan.windows}
    except PlanError as failure:
        error = str(failure)
    return PredictedArm(
        strategy=arm.name,
        options=arm.options,
        plugin=results.Plugin.of(arm.record),
        plan=plan_facts,
        metrics=metrics,
        intervals=intervals,
        error=error,
        forecast=details,
    )
