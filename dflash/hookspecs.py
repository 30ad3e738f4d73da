"""The contract with plugin authors: a plugin is a module that a package names under the group `dflash`.

    [project.entry-points.dflash]
    mine = "my_package.my_module"

and the module implements hooks::

    @hookimpl
    def dflash_strategies():
        return [StrategySpec("mine", "what it does, in one line", Mine)]

`dflash-bench plugins new NAME` starts such a package, and `dflash.testing` holds a strategy against the
contract of `dflash.batching.plan`.

Importing this module is cheap. A plugin's module should be, too: what costs (numpy, torch) belongs inside
the functions that need it, because every plugin is imported to list the strategies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pluggy

from dflash.errors import PluginError

if TYPE_CHECKING:
    from dflash.batching.plan import Strategy

# Rises when a plugin must change. A module says what it was written for by DFLASH_API_VERSION = 1;
# one that says nothing was written for version 1.
API_VERSION = 1

GROUP = "dflash"

# What stands for every strategy where strategies are named.
ALL = "all"

hookspec = pluggy.HookspecMarker("dflash")
hookimpl = pluggy.HookimplMarker("dflash")


@dataclass(frozen=True)
class StrategySpec:
    """A strategy on offer.

    name: lower case; letters, digits, `-` and `_`; not `all`.
    summary: one line.
    strategy: a frozen dataclass with a `plan` method as `dflash.batching.plan.Strategy` has it. Its fields
        are the options, each with a default and of a type that one text can give (int, float, bool, str,
        Literal, or one of these or None). A value that makes no sense is its `__post_init__`'s to refuse,
        by ValueError. One whose plan is the same in every epoch by design says so by a class attribute or
        property `same_every_epoch = True`.

    Raises PluginError if a spec is not so.
    """

    name: str
    summary: str
    strategy: type[Strategy]

    def __post_init__(self) -> None:
        if self.name == ALL:
            raise PluginError(f"strategy name {self.name!r}: it stands for every strategy")
        _refuse_bad("strategy", self.name, self.summary, self.strategy, "plan", "lengths, request")


Event = Mapping[str, Any]
"""Something that happened in a run, of what JSON can hold. ``event["type"]`` is one of

- ``run_start``: ``folder``, ``windows`` (of the whole run), ``first`` (the window it begins with; not 0 where
  it goes on with a run), ``manifest`` (settings, versions, fingerprints, plan digests, command line);
- ``window``: a committed window, as a line of metrics.jsonl has it;
- ``evaluation``: ``window``, ``loss`` and ``accuracy_B`` of the held-out samples;
- ``checkpoint``: ``window`` and ``path``; it is whole when the next window is committed;
- ``telemetry``: an interval, as a line of the file of ``dflash train --telemetry`` has it;
- ``run_end``: ``reason`` (finished, interrupted or failed), ``message`` of the failure or null, and, if there
  was any work, the telemetry of the whole run.

Types and keys are only ever added.
"""


class Observer(Protocol):
    """Who wants to hear of a run."""

    def open(self, run: Event) -> Callable[[Event], object]:
        """Before the first window, with ``run_start``; what it returns is called with every later event.

        The last one is ``run_end``. Calls come from the thread that drives the run, which waits: what takes
        long belongs in a thread of the observer's own. An exception here refuses the run; one from a later
        call is a warning, and no event follows.
        """
        ...


@dataclass(frozen=True)
class ObserverSpec:
    """An observer on offer, for `dflash train --observe NAME:OPTION=VALUE`.

    name, summary: as of a strategy.
    observer: a frozen dataclass with a method `open` as `Observer` has it. Its fields are the options, as
        those of a strategy.

    Raises PluginError if a spec is not so.
    """

    name: str
    summary: str
    observer: type[Observer]

    def __post_init__(self) -> None:
        _refuse_bad("observer", self.name, self.summary, self.observer, "open", "run")


def _refuse_bad(kind: str, name: str, summary: str, cls: object, method: str, arguments: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        raise PluginError(f"{kind} name {name!r}: use a-z, 0-9, - and _, a letter first")
    if not summary or "\n" in summary:
        raise PluginError(f"{kind} {name!r}: the summary must be one line")
    if not (isinstance(cls, type) and is_dataclass(cls) and cls.__dataclass_params__.frozen):  # type: ignore[attr-defined]
        raise PluginError(f"{kind} {name!r}: {cls!r} is not a frozen dataclass type")
    if not callable(getattr(cls, method, None)):
        raise PluginError(f"{kind} {name!r}: {cls.__name__} has no method {method}({arguments})")
    for field in fields(cls):
        if field.default is MISSING and field.default_factory is MISSING:
            raise PluginError(f"{kind} {name!r}: option {field.name!r} has no default")


@hookspec
def dflash_strategies() -> Iterable[StrategySpec]:
    """The strategies that a plugin offers."""
    return ()


@hookspec
def dflash_observers() -> Iterable[ObserverSpec]:
    """Those who can be told what happens in a training run."""
    return ()
