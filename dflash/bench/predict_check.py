"""A stored run's measured rates against what a profile foretells for the same windows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dflash.bench.results import Arm, Run
from dflash.bench.stored_runs import trainer_config
from dflash.bench.window_set import representative_windows
from dflash.config import Config
from dflash.data.sources import open_store
from dflash.data.store import TokenStore
from dflash.errors import DflashError
from dflash.plugin_manager import PluginManager
from dflash.simulation.foretell import Foretold, foretell
from dflash.simulation.profile import Profile
from dflash.training.schedule import plan_epoch


@dataclass(frozen=True)
class Check:
    """One arm of a run."""

    strategy: str
    topology: str
    """targets:drafters"""
    measured: float | None
    """median real tokens per second"""
    foretold: Foretold | None
    remark: str
    """why it is nothing to rely on; empty where the two agree"""
    drifted: bool
    """beyond the error that the model admits to, or impossible to compare"""


def check_run(run: Run, profile: Profile, manager: PluginManager) -> Iterator[Check]:
    """Predict every arm of ``run`` with its own settings, one after the other.

    Raises:
        UsageError: the run's settings are another version's, or its store is not there.
    """
    config = trainer_config(run)
    store = open_store(config.data)
    for arm in run.arms:
        topology = f"{config.pipeline.targets}:{run.settings.drafters}"
        measured = arm.metrics.get("tok_s")
        try:
            foretold = _foretold(run, arm, config, store, profile, manager)
        except DflashError as error:
            yield Check(arm.strategy, topology, measured, None, str(error), True)
            continue
        drift = foretold.drift(measured) if measured else None
        remark = "not measured" if not measured else "" if drift is None else "beyond the stated error"
        yield Check(arm.strategy, topology, measured, foretold, remark, bool(remark))


def _foretold(
    run: Run, arm: Arm, config: Config, store: TokenStore, profile: Profile, manager: PluginManager
) -> Foretold:
    chosen = manager.arms(arm.strategy)[0]
    drafters = run.settings.drafters
    epoch = plan_epoch(chosen.strategy, chosen.name, store, config, epoch=0, drafters=drafters)
    if arm.plan.get("digest") not in (None, epoch.plan.digest()):
        raise DflashError("the strategy plans differently now than in that run, or the store has changed")
    cycle = representative_windows(epoch, run.settings.windows)
    warmup, measured = run.settings.warmup_windows, run.settings.windows
    cooldown = -(-config.pipeline.depth // config.batching.accumulation)
    order = [cycle[(place - warmup) % len(cycle)] for place in range(warmup + measured + cooldown)]
    return foretell(config, epoch, profile, order, warmup, measured)
