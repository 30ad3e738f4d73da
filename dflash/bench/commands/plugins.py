"""`dflash-bench plugins`: list what is installed, check a strategy, start a new one."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dflash.bench.commands.options import plugin_options

if TYPE_CHECKING:
    from dflash.batching.options import Option
    from dflash.plugin_manager import Arm, ObserverRecord, StrategyRecord


@click.group()
def plugins() -> None:
    """Strategies and observers of this installation, built in and from other packages; how to write one."""


@plugins.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@plugin_options
def list_plugins(as_json: bool, blocked: tuple[str, ...], strict_plugins: bool) -> None:
    """List every strategy with its options, defaults and origin; then who can observe a training run."""
    from dflash.plugin_manager import PluginManager

    manager = PluginManager(blocked=blocked, strict=strict_plugins)
    records, observers = manager.strategies(), manager.observer_records()
    if as_json:
        listed = {
            "schema_version": 1,
            "strategies": [_as_dictionary(record) for record in records],
            "observers": [_observer_as_dictionary(record) for record in observers],
        }
        click.echo(json.dumps(listed, indent=2))
        return
    for record in records:
        origin = f"{record.distribution} {record.version}"
        if record.status != "OK":
            click.echo(f"{record.name}  {record.status}  ({origin}): {record.reason}")
            continue
        click.echo(f"{record.name}  ({origin})\n    {record.summary}")
        _list_options(record.options)
        if record.reason:
            click.echo(f"    {record.reason}")
    for observer in observers:
        origin = f"{observer.distribution} {observer.version}"
        click.echo(f"{observer.name}  ({origin}), for dflash train --observe\n    {observer.summary}")
        _list_options(observer.options)


def _list_options(options: tuple[Option, ...]) -> None:
    for option in options:
        click.echo(f"    {option.name}={option.default}  ({option.type})")


def _as_dictionary(record: StrategyRecord) -> dict[str, object]:
    return {
        "name": record.name,
        "summary": record.summary,
        "options": [asdict(option) for option in record.options],
        "distribution": record.distribution,
        "version": record.version,
        "status": record.status,
        "reason": record.reason,
        "sha256": record.sha256,
    }


def _observer_as_dictionary(record: ObserverRecord) -> dict[str, object]:
    return {
        "name": record.name,
        "summary": record.summary,
        "options": [asdict(option) for option in record.options],
        "distribution": record.distribution,
        "version": record.version,
    }


@plugins.command()
@click.argument("strategy", metavar="NAME[:OPTION=VALUE...][,...]")
@plugin_options
def check(strategy: str, blocked: tuple[str, ...], strict_plugins: bool) -> int:
    """Hold a strategy against the contract, rule by rule.

    The same kit as in dflash.testing: from the author's own tests it is
    test_contract = strategy_contract(Mine()). Exit code 0 if every rule is kept, 2 if one is broken, as a
    broken plan has anywhere else.
    """
    from dflash.errors import ExitCode
    from dflash.plugin_manager import PluginManager

    broken = [_check(arm) for arm in PluginManager(blocked=blocked, strict=strict_plugins).arms(strategy)]
    return ExitCode.USAGE if any(broken) else ExitCode.OK


def _check(arm: Arm) -> int:
    """Print what each rule says, as soon as it says it; return how many are broken."""
    from dflash.testing import RULES, Rehearsal, check_rule

    click.echo(f"{arm.name}  ({arm.record.distribution} {arm.record.version})")
    rehearsal = Rehearsal(arm.strategy)
    broken = 0
    for rule in RULES.values():
        finding = check_rule(rule, rehearsal)
        word = finding.kind if finding else "ok"
        colour = {"failed": "red", "note": "yellow", "ok": "green"}[word]
        click.echo(f"    {click.style(f'{word:6}', fg=colour)}  {rule.name:18}  {rule.summary}")
        if finding:
            click.echo(f"            {finding.message}")
            broken += finding.kind == "failed"
    click.echo(f"    {broken} of {len(RULES)} rules are broken" if broken else "    keeps the contract")
    return broken


@plugins.command()
@click.argument("name")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path),
    help="New folder of the package.  [default: dflash-strategy-NAME]",
)
def new(name: str, folder: Path | None) -> None:
    """Start a package with a strategy: code, entry point, test of the contract, README.

    \b
    dflash-bench plugins new mine
    pip install -e 'dflash-strategy-mine[test]'
    dflash-bench plugins check mine
    """
    from dflash.testing.scaffold import scaffold

    folder = scaffold(name, folder)
    click.echo(f"{folder} is a package with the strategy {name!r}. What comes next is in its README.md.")
