"""Losses, rates and the time of the stages for TensorBoard; an example of an observer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash.hookspecs import Event, ObserverSpec, hookimpl


@dataclass(frozen=True)
class TensorBoard:
    """Scalars over windows.

    dir: folder of the event files; empty: `tensorboard` in the folder of the run.
    """

    dir: str = ""

    def open(self, run: Event) -> Callable[[Event], None]:
        """Begin to write; what a run that goes on from a checkpoint had written after it is hidden."""
        from dflash.errors import UsageError

        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UsageError(
                "observer tensorboard needs a package that is missing: pip install 'dflash[tensorboard]'"
            ) from error
        folder = Path(self.dir) if self.dir else Path(run["folder"]) / "tensorboard"
        # What was written at or after this step is hidden; the checkpoint has all up to `first`.
        purge_step = run["first"] + 1 if run["first"] else None
        writer: Any = SummaryWriter(str(folder), purge_step=purge_step)

        def tell(event: Event) -> None:
            if event["type"] == "run_end":
                writer.close()
                return
            # A window's weights are those after it, as an evaluation counts.
            step = (
                event["window"] + 1 if event["type"] == "window" else event.get("window", event.get("done"))
            )
            for tag, value in scalars(event).items():
                writer.add_scalar(tag, value, step)

        return tell


def scalars(event: Event) -> dict[str, float]:
    """Tag and value of everything in an event that is worth a curve."""
    kind = event["type"]
    if kind == "window":
        found = {
            "loss/training": event["loss"],
            "accuracy/training, slot 1": event["accuracy_B"][1],
            "optimizer/learning rate": event["learning_rate"],
            "optimizer/gradient norm": event["gradient_norm"],
            "batching/gradient diversity": event["gradient_diversity"],
        }
    elif kind == "evaluation":
        found = {"loss/held-out": event["loss"], "accuracy/held-out, slot 1": event["accuracy_B"][1]}
    elif kind == "telemetry":
        found = {
            **{
                f"tokens per second/{of}": event[f"{of}_tokens_per_second"]
                for of in ("real", "padded", "loss")
            },
            "batching/padding efficiency": event["padding_efficiency"],
            **{f"busy/{stage['name']}": _share(stage, "busy") for stage in event["stages"]},
            **{f"queue/{channel['name']}": float(channel["items"]) for channel in event["channels"]},
        }
    else:
        found = {}
    return {tag: value for tag, value in found.items() if value is not None}


def _share(stage: dict[str, float], activity: str) -> float | None:
    return stage[activity] / stage["wall"] if stage["wall"] else None


@hookimpl
def dflash_observers() -> list[ObserverSpec]:
    return [ObserverSpec("tensorboard", "curves of losses, rates and stages for TensorBoard", TensorBoard)]
