"""`dflash-bench predict`: what a run on some machine will do, before it is launched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dflash.bench.commands.options import plugin_options
from dflash.bench.commands.scene import make_samples, make_scene, parse_topology, scene_options
from dflash.bench.output import write


@click.command()
@click.option(
    "-s",
    "--strategy",
    "strategies",
    multiple=True,
    default=("all",),
    metavar="NAME[:OPTION=VALUE...][,...]",
    help="Strategies to predict; 'all' is every one of this installation. Repeatable.  [default: all]",
)
@click.option(
    "--topology",
    callback=parse_topology,
    default="1:1",
    show_default=True,
    metavar="TARGETS:DRAFTERS",
    help="Workers of each kind, N:M.",
)
@click.option("--token-budget", type=click.IntRange(1), help="Most tokens of a micro-batch.  [default: 4096]")
@click.option(
    "--accumulation", type=click.IntRange(1), help="Micro-batches of a drafter in a window, A.  [default: 2]"
)
@click.option(
    "--depth", type=click.IntRange(1), help="Micro-batches that may wait for a drafter.  [default: 3]"
)
@click.option("--no-barrier", is_flag=True, help="Let drafters not wait for each other: what the wait costs.")
@click.option("--epoch", type=click.IntRange(0), default=0, show_default=True, help="Which epoch to plan.")
@scene_options
@click.option("--check", metavar="RUN", help="Hold a stored run, 'last' or a file, against its prediction.")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Write the forecasts as JSON ('-': stdout)."
)
@plugin_options
def predict(
    strategies: tuple[str, ...],
    topology: tuple[int, int],
    token_budget: int | None,
    accumulation: int | None,
    depth: int | None,
    no_barrier: bool,
    epoch: int,
    check: str | None,
    json_file: Path | None,
    blocked: tuple[str, ...],
    strict_plugins: bool,
    lengths: str | None,
    data: str | None,
    seed: int,
    overlong: str,
    **options: Any,
) -> int:
    """Predict speed, waiting, memory and cost of a run from lengths alone, in seconds, without its hardware.

    Each strategy's real plan runs through a simulation of the pipeline: slots, order, barrier and all. What
    its micro-batches cost comes from a hardware profile. A profile that 'calibrate' has measured predicts
    this machine with these models; those of GPUs count a model's operations and give every figure's source.
    Ratios between strategies are far surer than rates.

    \b
    dflash-bench predict --lengths lengths.npy --token-budget 49152 --hardware rtx-pro-6000 \\
                         --topology 2:6 --accumulation 4 --model qwen3-8b
    dflash-bench calibrate && dflash-bench predict --strategy random,bucketed
    dflash-bench --strategy random,bucketed && dflash-bench predict --check last

    --check predicts the very windows that a stored run measured, and says how far off that was.
    """
    from dflash.bench.plan_progress import PlanProgress
    from dflash.plugin_manager import PluginManager

    manager = PluginManager(blocked=blocked, strict=strict_plugins)
    if check is not None:
        return _check(check, options["hardware"], manager)

    from dflash.batching.plan import PlanRequest
    from dflash.bench.predict_report import show
    from dflash.bench.predict_run import run_predictions
    from dflash.config import BatchingSettings, PipelineSettings

    arms = manager.arms(",".join(strategies))
    batching = BatchingSettings()
    scene = make_scene(
        topology=topology,
        accumulation=accumulation or batching.accumulation,
        depth=depth or PipelineSettings().depth,
        barrier=not no_barrier,
        **options,
    )
    request = PlanRequest(
        token_budget=token_budget or batching.token_budget,
        seed=seed,
        epoch=epoch,
        drafters=scene.topology.drafters,
        accumulation=scene.topology.accumulation,
        tail="spread",
    )
    with PlanProgress(len(arms)) as progress:
        prediction = run_predictions(
            arms,
            make_samples(lengths, data),
            request,
            scene,
            overlong,  # type: ignore[arg-type]
            progress.started,
            progress.ended,
        )
    if json_file != Path("-"):
        show(prediction, scene)
    if json_file is not None:
        write(json_file, prediction.to_json(indent=2) + b"\n")
    return int(prediction.exit_code)


def _check(name: str, hardware: str, manager: Any) -> int:
    from dflash.bench.predict_check import check_run
    from dflash.bench.predict_report import show_check
    from dflash.bench.stored_runs import load_run
    from dflash.command_line import say
    from dflash.errors import ExitCode
    from dflash.simulation.profile import load_profile

    profile = load_profile(hardware)
    checks = list(check_run(load_run(name), profile, manager))
    show_check(checks, profile.name)
    drifted = [check.strategy for check in checks if check.drifted]
    if drifted:
        say(f"warning: beyond the stated error, or not comparable: {', '.join(drifted)}")
    return ExitCode.OK
