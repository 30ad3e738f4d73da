"""Stages over bounded channels, driven by an engine: see ``dflash.pipeline.engine`` for the whole of it."""

from __future__ import annotations

from dflash.pipeline.channel import Receiver, Sender, channel
from dflash.pipeline.core import ChannelStatistics
from dflash.pipeline.engine import Pipeline
from dflash.pipeline.engines import ENGINES, open_engine
from dflash.pipeline.operation import (
    Aborted,
    BrokenChannel,
    ChannelError,
    ClosedChannel,
    EndOfChannel,
    ItemTooLarge,
)
from dflash.pipeline.ordering import OutOfOrder, in_order
from dflash.pipeline.stage import span, working_on
from dflash.pipeline.telemetry import StageTelemetry, Telemetry

__all__ = [
    "ENGINES",
    "Aborted",
    "BrokenChannel",
    "ChannelError",
    "ChannelStatistics",
    "ClosedChannel",
    "EndOfChannel",
    "ItemTooLarge",
    "OutOfOrder",
    "Pipeline",
    "Receiver",
    "Sender",
    "StageTelemetry",
    "Telemetry",
    "channel",
    "in_order",
    "open_engine",
    "span",
    "working_on",
]
