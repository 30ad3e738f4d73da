"""Defaults of the command line from a project's files.

    # pyproject.toml                        # or a file given with --config
    [tool.dflash-bench]                     [bench]
    strategy = ["random", "bucketed"]       strategy = ["random", "bucketed"]
    fail-on = ["tok_s:5%"]                  fail-on = ["tok_s:5%"]

    [tool.dflash-bench.plan]                [bench.plan]
    lengths = "lengths.npy"                 lengths = "lengths.npy"

Keys are the long options of `dflash-bench run`, those of another command in a table of its name. The command
line comes first, then --config, then the nearest pyproject.toml upwards that has the table. Beside [bench], a
file for --config has the trainer's sections.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import click

from dflash.errors import UsageError

_PATHS = {"baseline", "lengths", "data", "target"}
"""Options whose relative paths in a file start from its folder, where something is there."""


def defaults(command: click.Command, config_file: Path | None, folder: Path | None = None) -> dict[str, Any]:
    """What the files say of ``command``'s parameters, by their names.

    Raises UsageError for a file that cannot be read and for a key or value that fits no option.
    """
    found: dict[str, Any] = {}
    for path, table in (_project(folder or Path.cwd()), _given(config_file)):
        for key, value in _of_command(table, command, path).items():
            found |= _parameter(command, key, value, path)
    return found


def has_gate(folder: Path | None = None) -> bool:
    """Whether a project file says what `dflash-bench` alone is to run."""
    return "strategy" in _project(folder or Path.cwd())[1]


def _project(folder: Path) -> tuple[Path, dict[str, Any]]:
    for parent in (folder.resolve(), *folder.resolve().parents):
        path = parent / "pyproject.toml"
        if path.is_file():
            tools = _toml(path).get("tool", {})
            if "dflash-bench" in tools:
                return path, _table(tools["dflash-bench"], path, "tool.dflash-bench")
    return folder, {}


def _given(path: Path | None) -> tuple[Path, dict[str, Any]]:
    if path is None:
        return Path(), {}
    return path, _table(_toml(path).get("bench", {}), path, "bench")


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from error


def _table(value: object, path: Path, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{path}: [{name}] is not a table")
    return value


def _of_command(table: dict[str, Any], command: click.Command, path: Path) -> dict[str, Any]:
    if command.name == "run":
        return {key: value for key, value in table.items() if not isinstance(value, dict)}
    return _table(table.get(str(command.name), {}), path, str(command.name))


def _parameter(command: click.Command, key: str, value: object, path: Path) -> dict[str, Any]:
    options = {
        option.removeprefix("--"): parameter
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for option in parameter.opts
        if option.startswith("--") and option not in ("--config", "--help")
    }
    if key not in options:
        raise UsageError(f"{path}: {command.name} has no option {key!r}; it has {', '.join(sorted(options))}")
    option = options[key]
    values = value if isinstance(value, list) else [value]
    if isinstance(value, list) and not option.multiple:
        raise UsageError(f"{path}: {key} takes one value, not a list")
    if not all(isinstance(one, str | int | float) for one in values):
        raise UsageError(f"{path}: {key} = {value!r} is no text, number, true or false")
    if key in _PATHS:
        values = [str(path.parent / str(one)) if (path.parent / str(one)).exists() else one for one in values]
    return {str(option.name): values if option.multiple else values[0]}
