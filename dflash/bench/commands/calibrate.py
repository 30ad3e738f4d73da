"""`dflash-bench calibrate`: measure this machine, so that predictions hold on it."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option("--name", default="cpu-this", show_default=True, help="What to call the profile.")
@click.option("--data", metavar="STORE", help="A token store, or 'sample'.  [default: sample]")
@click.option("--target", metavar="FOLDER", help="The target, or 'sample'.  [default: sample]")
@click.option("--token-budget", type=click.IntRange(1), help="Most tokens of a micro-batch.  [default: 4096]")
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="TOML file of the trainer.")
@click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Change one setting.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Where to write the profile.  [default: under its name, for this user]",
)
def calibrate(
    name: str,
    data: str | None,
    target: str | None,
    token_budget: int | None,
    config_file: Path | None,
    overrides: tuple[str, ...],
    out: Path | None,
) -> int:
    """Time the trainer's own stages on this machine, in under two minutes, and write a hardware profile.

    Thirty micro-batches of short, middling and long samples, padded and packed, go through reading, target
    and drafter one stage at a time; then a target and a drafter run at once, to see how they slow each other
    down. The fit is checked on micro-batches that it has not seen. Let nothing else run meanwhile.

    \b
    dflash-bench calibrate
    dflash-bench predict --strategy all --topology 2:1
    dflash-bench calibrate --target FOLDER --data STORE --name my-machine --out my-machine.toml

    A profile holds for the models, the threads and the machine that it was measured with.
    """
    from rich.console import Console

    from dflash.bench.calibrate_report import show
    from dflash.bench.machine import describe
    from dflash.config import load_config
    from dflash.simulation.calibrate import calibrate as measure
    from dflash.simulation.profile import save_profile

    settings = {"batching.token_budget": token_budget, "data.store": data, "data.target": target}
    named = tuple(f"{key}={value}" for key, value in settings.items() if value is not None)
    config = load_config(config_file, (*overrides, *named))
    machine = describe()
    cores = max(1, int(min(machine.cores, machine.cpu_quota or machine.cores)))
    console = Console(stderr=True, highlight=False)
    with console.status("calibrating") as status:
        found = measure(config, name, cores, lambda line: status.update(f"calibrating: {line}"))
    show(found, save_profile(found.profile, out))
    return 0
