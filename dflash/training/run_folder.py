"""The folder of a run: settings, manifest, metrics, checkpoints, and the drafter."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from dflash.config import Config, dump_config
from dflash.data.atomic import atomic_writer
from dflash.errors import UsageError
from dflash.models.drafter import Drafter
from dflash.models.export import write_drafter
from dflash.models.published_config import ServingFacts
from dflash.models.shape import DrafterShape
from dflash.training.checkpoint import checkpoints, read_checkpoint
from dflash.training.step import EvaluationResult, WindowResult

METRICS = "metrics.jsonl"


def new_folder(out: Path | None) -> Path:
    """Make the folder of a new run; UsageError if it holds one already or cannot be made."""
    folder = out or Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S")
    if (folder / METRICS).exists():
        raise UsageError(
            f"{folder} already holds a run: give another folder with --out, or go on with --resume {folder}"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {folder}: {error.strerror}") from error
    return folder


def write_settings(folder: Path, config: Config, manifest: dict[str, Any], target: dict[str, Any]) -> None:
    """Write config.toml, manifest.json and target.json."""
    (folder / "config.toml").write_text(dump_config(config))
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    (folder / "target.json").write_text(json.dumps(target, indent=2) + "\n")


def open_metrics(folder: Path, windows: int) -> IO[str]:
    """metrics.jsonl, cut back to what ``windows`` trained windows had written, to go on with."""
    path = folder / METRICS
    if path.exists():
        kept = [line for line in path.read_text().splitlines(keepends=True) if _belongs(line, windows)]
        with atomic_writer(path) as file:
            file.write("".join(kept).encode())
    return path.open("a")


def metrics_line(result: WindowResult | EvaluationResult, bottleneck: str) -> str:
    """A result as it stands in metrics.jsonl."""
    kind = "window" if isinstance(result, WindowResult) else "evaluation"
    return json.dumps({"type": kind, **asdict(result), "bottleneck": bottleneck}, allow_nan=False) + "\n"


def write_last_drafter(folder: Path, shape: DrafterShape, facts: ServingFacts) -> Path | None:
    """Write the weights of the last checkpoint as drafter/; None where there is no checkpoint."""
    found = checkpoints(folder)
    if not found:
        return None
    prefix = "drafter."
    tensors = read_checkpoint(found[-1]).tensors
    drafter = Drafter(shape)
    drafter.load_state_dict(
        {name.removeprefix(prefix): one for name, one in tensors.items() if name.startswith(prefix)}
    )
    write_drafter(folder / "drafter", drafter, facts)
    return folder / "drafter"


def _belongs(line: str, windows: int) -> bool:
    """Whether a line was written before the checkpoint; half a line of a killed run never was."""
    try:
        entry = json.loads(line)
    except ValueError:
        return False
    last = windows - 1 if entry["type"] == "window" else windows
    return bool(entry["window"] <= last)
