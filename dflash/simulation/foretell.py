"""The rate that a run with given settings should reach, to be held against the one that it does reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dflash.config import Config
from dflash.data.sources import target_folder
from dflash.simulation import hardware
from dflash.simulation.forecast import forecast, foretell_windows
from dflash.simulation.pipeline import Topology
from dflash.simulation.profile import Profile
from dflash.simulation.shapes import plan_shapes
from dflash.simulation.sizes import load_sizes
from dflash.training.schedule import EpochPlan


@dataclass(frozen=True)
class Foretold:
    """Real tokens per second, and the bounds that the model admits to."""

    tok_s: float
    low: float
    high: float

    def drift(self, measured: float) -> float | None:
        """measured / predicted - 1 where it lies beyond the stated error; None within it."""
        return None if self.low <= measured <= self.high else measured / self.tok_s - 1


def foretell(
    config: Config,
    epoch: EpochPlan,
    profile: Profile,
    order: Sequence[int] | None = None,
    warmup: int = 0,
    measured: int = 0,
) -> Foretold:
    """Predict a run's rate over a whole epoch, or over a trial's own windows.

    Args:
        order: windows of the plan in the order in which a trial trains them; None: the whole epoch.
        warmup, measured: of ``order``, windows before the clock starts, and windows on it.

    Raises:
        UsageError: the profile was measured with other models.
        PlanError: the plan has no window.
    """
    sizes = load_sizes(str(target_folder(config.data)), config.drafter)
    cost, rule = hardware.cost_model(profile, sizes), hardware.anchor_rule(profile, config.drafter)
    topology = Topology(
        targets=config.pipeline.targets,
        drafters=epoch.request.drafters,
        accumulation=epoch.request.accumulation,
        depth=config.pipeline.depth,
        prefetch=config.pipeline.prefetch,
        cores=hardware.cores(profile),
    )
    if order is None:
        whole = forecast(epoch.plan, epoch.lengths, epoch.request, cost, rule, topology)
        return Foretold(whole.tok_s, *whole.interval(whole.tok_s))
    shapes = plan_shapes(epoch.plan, epoch.lengths, epoch.request, rule)
    rate = foretell_windows(shapes, cost, topology, order, warmup, measured)
    return Foretold(rate, rate / (1 + cost.error), rate * (1 + cost.error))
