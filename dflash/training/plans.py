"""All plans of a run, known before its first window: how many windows there are, and that they are right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dflash.config import Config
from dflash.data.store import TokenStore
from dflash.errors import PlanError, UsageError
from dflash.plugin_manager import Arm, PluginManager
from dflash.training.schedule import EpochPlan, Window, plan_epoch


@dataclass(frozen=True)
class RunPlans:
    """The plans of all epochs. One is made again when its epoch begins, and none is kept."""

    config: Config
    store: TokenStore
    arm: Arm
    windows: tuple[int, ...]
    """of each epoch that is trained"""
    digests: tuple[str, ...]
    """of each epoch that is trained"""

    @property
    def total(self) -> int:
        """Windows of the whole run."""
        return sum(self.windows)

    def training_windows(self, first: int = 0) -> Iterator[Window]:
        """The windows of the run in their order, from window ``first`` on."""
        start = 0
        for epoch, count in enumerate(self.windows):
            if first < start + count:
                plan = self._again(epoch)
                for window in range(max(0, first - start), count):
                    yield plan.window(window)
            start += count

    def _again(self, epoch: int) -> EpochPlan:
        plan = _plan(self.config, self.store, self.arm, epoch)
        if plan.plan.digest() != self.digests[epoch]:
            raise PlanError(f"strategy {self.arm.name!r} made another plan of epoch {epoch} when asked again")
        return plan


def plan_run(
    config: Config, store: TokenStore, look: Callable[[EpochPlan, int], None] = lambda *_: None
) -> RunPlans:
    """Plan and certify every epoch, so that a strategy that fails in the third is refused at the start.

    Args:
        look: shown each plan, with the number of its windows that are trained.

    Raises:
        UsageError: the settings name no strategy, or several; the strategy fails; there is no window.
    """
    arm, limit = _single_arm(config), config.training.windows
    windows: list[int] = []
    digests: list[str] = []
    for epoch in range(config.training.epochs):
        plan = _plan(config, store, arm, epoch)
        left = plan.plan.windows if limit is None else limit - sum(windows)
        windows.append(min(plan.plan.windows, left))
        digests.append(plan.plan.digest())
        look(plan, windows[-1])
        if sum(windows) == limit:
            break
    if not sum(windows):
        raise UsageError(
            f"the plans of {store.path} have no window: lower batching.accumulation or pipeline.drafters, or "
            "set batching.tail=spread"
        )
    return RunPlans(config, store, arm, tuple(windows), tuple(digests))


def _plan(config: Config, store: TokenStore, arm: Arm, epoch: int) -> EpochPlan:
    return plan_epoch(arm.strategy, arm.name, store, config, epoch, config.pipeline.drafters)


def _single_arm(config: Config) -> Arm:
    arms = PluginManager().arms(config.batching.strategy)
    if len(arms) != 1:
        raise UsageError(
            f"batching.strategy={config.batching.strategy!r} names {len(arms)} strategies, not one"
        )
    return arms[0]
