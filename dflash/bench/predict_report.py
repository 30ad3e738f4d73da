"""Forecasts as a person reads them: what a strategy will do, and what it will wait for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from dflash.bench.metrics import ABSENT, number, percent
from dflash.bench.predict_check import Check
from dflash.bench.predict_run import Prediction, Scene
from dflash.bench.tables import clean, labelled, name_cell, number_cell, percent_cell, show_all, table

_GB = 10**9


def show(prediction: Prediction, scene: Scene, console: Console | None = None) -> None:
    """Print ``prediction`` to ``console``, standard output if None."""
    parts: list[RenderableType] = [
        _speed(prediction),
        "",
        _waits(prediction),
        "",
        labelled(_footer(prediction, scene)),
    ]
    show_all(parts, console)


def show_check(checks: Sequence[Check], name: str, console: Console | None = None) -> None:
    """Print how far predicted and measured rates of a run are apart."""
    rows = table(
        "strategy", "topo-\nlogy", "predicted\ntok/s", "\nbetween", "measured\ntok/s", "measured /\npredicted"
    )
    lines: list[tuple[str, Text]] = []
    ratios: list[float] = []
    for one in checks:
        expected, between, ratio = ABSENT, ABSENT, ABSENT
        if one.foretold:
            expected = number(one.foretold.tok_s, 0)
            between = f"{number(one.foretold.low, 0)}..{number(one.foretold.high, 0)}"
            if one.measured:
                ratios.append(one.measured / one.foretold.tok_s)
                ratio = number(ratios[-1], 3)
        measured = number(one.measured, 0) if one.measured else ABSENT
        rows.add_row(clean(one.strategy), one.topology, expected, between, measured, ratio)
        if one.drifted:
            text = Text.assemble(clean(one.strategy), ": ", clean(one.remark), style="yellow")
            lines.append(("drift", text))
    lines.append(("profile", clean(name)))
    if len(ratios) > 1:
        spread = percent(max(ratios) / min(ratios) - 1, 1)
        lines.append(("ratios", Text(f"between strategies they are off by {spread} at most")))
    show_all([rows, "", labelled(lines)], console)


def _speed(prediction: Prediction) -> Table:
    rows = table(
        "strategy",
        "real\ntok/s",
        "ratio to\nfirst",
        "padded\ntok/s",
        "padding\neff.",
        "variance\nratio",
        "epoch\nhours",
        "device\nhours",
    )
    first = prediction.arms[0].metrics.get("tok_s")
    for arm in prediction.arms:
        rate = arm.metrics.get("tok_s")
        rows.add_row(
            name_cell(arm),
            number_cell(arm, "tok_s", 0),
            Text(number(rate / first, 3) if rate and first else ABSENT),
            number_cell(arm, "padded_tok_s", 0),
            percent_cell(arm, "padding_efficiency", 1),
            number_cell(arm, "variance_ratio", 1),
            _hours(arm.metrics.get("epoch_seconds")),
            _hours(arm.metrics.get("device_seconds")),
        )
    return rows


def _hours(seconds: float | None) -> Text:
    return Text(ABSENT if seconds is None else number(seconds / 3600))


def _waits(prediction: Prediction) -> Table:
    rows = table(
        "strategy",
        "target\nbusy",
        "\nblocked",
        "\nstarved",
        "drafter\nbusy",
        "\nstarved",
        "\nbarrier",
        "\ncommit",
        "\nqueue",
    )
    for arm in prediction.arms:
        if arm.error is not None:
            continue
        targets, drafters = arm.forecast["targets"], arm.forecast["drafters"]
        cells = [(targets, "busy"), (targets, "blocked"), (targets, "starved")]
        cells += [(drafters, name) for name in ("busy", "starved", "barrier", "commit")]
        rows.add_row(
            name_cell(arm),
            *(percent(fmean(worker.get(name, 0.0) for worker in workers), 0) for workers, name in cells),
            number(arm.forecast["ready_mean"], 1),
        )
    return rows


def _footer(prediction: Prediction, scene: Scene) -> Iterator[tuple[str, Text]]:
    s, data, fits = prediction.settings, prediction.data, prediction.memory
    for arm in prediction.arms:
        if arm.error is not None:
            yield "failed", Text.assemble(clean(arm.strategy), ": ", clean(arm.error), style="red")
    good = [arm for arm in prediction.arms if arm.error is None]
    if good:
        model, span = good[0].forecast["model_error"], max(arm.forecast["span_error"] for arm in good)
        part = min(arm.forecast["simulated_windows"] / arm.forecast["windows"] for arm in good)
        yield (
            "error",
            Text(
                f"rates may be off by {percent(model, 0)}, says the profile, and all of them alike; "
                f"another {percent(span, 2)} for simulating {percent(part, 0)} of the windows"
            ),
        )
    if fits is not None:
        style = "" if fits.fits else "red"
        verdict = "fits" if fits.fits else f"does not fit: at most {number(fits.most_tokens, 0)} tokens do"
        yield (
            "memory",
            Text(
                f"target {number(fits.target / _GB)} GB, drafter {number(fits.drafter / _GB)} GB a device, "
                f"slots {number(fits.host / _GB)} GB of the host; a micro-batch of "
                f"{number(s.token_budget, 0)} tokens {verdict}",
                style=style,
            ),
        )
    if scene.price is not None:
        costs = [arm for arm in good if arm.metrics["epoch_cost"] is not None]
        text = ", ".join(f"{arm.strategy} {number(arm.metrics['epoch_cost'] or 0.0)}" for arm in costs)
        yield "price", clean(f"of an epoch at {number(scene.price)} a device hour: {text}")
    yield (
        "data",
        clean(f"{data.name}: {number(data.samples, 0)} samples, {number(data.tokens, 0)} real tokens"),
    )
    yield (
        "run",
        clean(
            f"{s.model} on {s.hardware}, {s.targets} targets : {s.drafters} drafters, token budget "
            f"{number(s.token_budget, 0)}, accumulation {s.accumulation}, depth {s.depth}, "
            f"{s.attention} attention, one anchor for {s.anchor_stride} tokens up to {s.max_anchors}"
            + ("" if s.barrier else ", drafters that never wait for each other")
        ),
    )
    yield (
        "reading",
        Text(
            "blocked: every slot is taken, the drafters are behind. starved: nothing to work on. barrier: "
            "waiting for the slowest drafter of the window. queue: micro-batches ready for a drafter. "
            "variance ratio: of window mean length, 1 is random."
        ),
    )
