"""A search as a person reads it: the front, and the settings of the best choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from dflash.bench.metrics import number, percent
from dflash.bench.predict_run import Scene
from dflash.bench.tables import clean, labelled, show_all, table
from dflash.simulation.search import Judged, best_of, pareto_front


def show(
    found: Sequence[Judged],
    scene: Scene,
    most_variance: float,
    interrupted: bool = False,
    console: Console | None = None,
) -> None:
    """Print the Pareto front of ``found`` and what to train with to ``console``, standard output if None."""
    best = best_of(found, most_variance)
    rows = table(
        "strategy",
        "real\ntok/s",
        "variance\nratio",
        "padding\neff.",
        "\nN:M",
        "accu-\nmulation",
        "\ndepth",
        "token\nbudget",
        "",
    )
    for one in pareto_front(found):
        choice = one.choice
        rows.add_row(
            clean(choice.strategy),
            number(one.tok_s, 0),
            number(one.variance_ratio, 1),
            percent(one.padding_efficiency, 1),
            "{}:{}".format(*choice.topology),
            str(choice.accumulation),
            str(choice.depth),
            number(choice.token_budget, 0),
            "best" if one is best else "",
        )
    lines = [
        (
            "search",
            Text(
                f"{len(found)} choices simulated, {scene.sizes.name} on {scene.profile.name}"
                + (", interrupted: what was found until then" if interrupted else "")
            ),
        ),
        ("reading", Text("no other choice is both faster and better mixed; variance ratio 1 is random")),
    ]
    parts: list[Any] = [rows, "", labelled(lines), ""]
    if best is None:
        parts.append(Text(f"nothing has a variance ratio of at most {number(most_variance)}", style="yellow"))
    else:
        parts.append(Text(as_toml(best)))
    show_all(parts, console)


def as_toml(best: Judged) -> str:
    """The settings of a choice, as the trainer's configuration has them."""
    import tomli_w

    choice = best.choice
    targets, drafters = choice.topology
    pipeline = {"targets": targets, "depth": choice.depth}
    if drafters > 1:
        pipeline["drafters"] = drafters
    batching = {
        "strategy": choice.strategy,
        "token_budget": choice.token_budget,
        "accumulation": choice.accumulation,
    }
    return tomli_w.dumps({"batching": batching, "pipeline": pipeline})


def as_json(found: Sequence[Judged], most_variance: float, interrupted: bool) -> bytes:
    """Everything that was simulated, the front and the best; UTF-8."""
    best = best_of(found, most_variance)
    content = {
        "schema_version": 1,
        "interrupted": interrupted,
        "max_variance_ratio": most_variance,
        "best": None if best is None else asdict(best),
        "front": [asdict(one) for one in pareto_front(found)],
        "simulated": [asdict(one) for one in found],
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
