"""What several commands of dflash-bench share: settings files, plugins and gates."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from dflash.bench import settings_file

if TYPE_CHECKING:
    from dflash.bench.gates import Rules
    from dflash.plugin_manager import PluginManager

Command = Callable[..., Any]


def plugin_options(command: Command) -> Command:
    """Adds `-p no:NAME`, as the names `blocked`, and `--strict-plugins`."""
    strict = click.option(
        "--strict-plugins", is_flag=True, help="A plugin that cannot be loaded is an error."
    )
    blocked = click.option(
        "-p",
        "blocked",
        multiple=True,
        metavar="no:NAME",
        callback=_names,
        help="Do not load a plugin.",
    )
    return blocked(strict(command))


def _names(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    for text in values:
        if not text.startswith("no:"):
            raise click.UsageError(f"-p {text!r}: write -p no:NAME")
    return tuple(text.removeprefix("no:") for text in values)


def config_option(command: Command) -> Command:
    """Adds `--config FILE`, the path `config_file`: the trainer's sections, and defaults of the options."""
    return click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path),
        is_eager=True,
        callback=_take_defaults,
        help="TOML file: the trainer's sections, and under [bench] defaults of these options, which may also "
        "stand under [tool.dflash-bench] in pyproject.toml.",
    )(command)


def _take_defaults(ctx: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    ctx.default_map = settings_file.defaults(ctx.command, path)
    return path


@dataclass(frozen=True)
class GateOptions:
    """What a command was told about gates, as it was written."""

    fail_on: tuple[str, ...]
    strict: bool
    floor: str | None
    on_inconclusive: Literal["pass", "fail"]
    on_missing_baseline: Literal["pass", "fail"]

    def rules(self, manager: PluginManager | None = None, run: Sequence[str] = ()) -> Rules:
        """As rules. Raises UsageError for what cannot be understood.

        Where ``manager`` is given, a gate that names a strategy which neither ``run`` nor the installation
        has is an error.
        """
        from dflash.bench.gates import Rules, parse_gates, parse_percent
        from dflash.bench.verdict import FLOOR

        gates = parse_gates(self.fail_on)
        for gate in gates:
            if manager is not None and gate.strategy is not None and not any(map(gate.binds, run)):
                manager.arms(gate.strategy)  # which says what there is
        return Rules(
            gates=gates,
            floor=FLOOR if self.floor is None else parse_percent(self.floor, "--floor"),
            strict=self.strict,
            on_inconclusive=self.on_inconclusive,
            on_missing_baseline=self.on_missing_baseline,
        )


def gate_options(command: Command) -> Command:
    """Adds `--fail-on` and its kin, as one GateOptions named `gates`."""

    @wraps(command)
    def wrapped(*args: Any, **options: Any) -> Any:
        names = GateOptions.__dataclass_fields__
        gates = GateOptions(**{name: options.pop(name) for name in names})
        return command(*args, gates=gates, **options)

    policy = click.Choice(["pass", "fail"])
    for option in (
        click.option(
            "--on-missing-baseline",
            type=policy,
            default="fail",
            show_default=True,
            help="What a gate without anything to compare with does; fail is exit 5.",
        ),
        click.option(
            "--on-inconclusive",
            type=policy,
            default="pass",
            show_default=True,
            help="What an inconclusive gate does; fail is exit 4.",
        ),
        click.option(
            "--floor", metavar="PERCENT", help="Smaller losses of a clock never fail.  [default: 2%]"
        ),
        click.option("--strict", is_flag=True, help="Inconclusive gates and implausible gains are exit 4."),
        click.option(
            "--fail-on",
            multiple=True,
            metavar="[STRATEGY.]METRIC[:PERCENT]",
            help="Exit 1 if a metric got worse; a loss of PERCENT must not be missed, as in tok_s:5%. "
            "Repeatable.",
        ),
    ):
        wrapped = option(wrapped)
    return wrapped


def parse_seconds(ctx: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """Seconds from `240`, `240s`, `4m` or `1h`, for an option's callback."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", str(text).strip(), re.ASCII)
    if not found or float(found[1]) == 0:
        raise click.BadParameter(f"{text!r} is no time; write it like 240s, 4m or 1h", ctx, parameter)
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]
