"""The option `--topology N:M`."""

from __future__ import annotations

from dflash.errors import UsageError


def topology_settings(text: str) -> tuple[str, str]:
    """``N:M`` as settings of the pipeline; UsageError if it is not like that."""
    targets, colon, drafters = text.partition(":")
    if not (colon and targets.isdigit() and drafters.isdigit() and int(targets) and int(drafters)):
        raise UsageError(f"--topology {text!r}: write it as targets:drafters, e.g. 6:2")
    return f"pipeline.targets={targets}", f"pipeline.drafters={drafters}"
