"""What several commands of dflash-bench share: which plugins are loaded, and where output goes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def plugin_options(command: Callable[..., Any]) -> Callable[..., Any]:
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


def write(path: Path, content: bytes, otherwise: str = "") -> None:
    """Write a file, or standard output if it is `-`; UsageError, ending in `otherwise`, if it cannot be."""
    from dflash.errors import UsageError

    if path == Path("-"):
        sys.stdout.buffer.write(content)
        return
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}{otherwise}") from error
