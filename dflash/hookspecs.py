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
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING

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
        if not re.fullmatch(r"[a-z][a-z0-9_-]*", self.name):
            raise PluginError(f"strategy name {self.name!r}: use a-z, 0-9, - and _, a letter first")
        if self.name == ALL:
            raise PluginError(f"strategy name {self.name!r}: it stands for every strategy")
        if not self.summary or "\n" in self.summary:
            raise PluginError(f"strategy {self.name!r}: the summary must be one line")
        cls: object = self.strategy
        if not (isinstance(cls, type) and is_dataclass(cls) and cls.__dataclass_params__.frozen):  # type: ignore[attr-defined]
            raise PluginError(f"strategy {self.name!r}: {cls!r} is not a frozen dataclass type")
        if not callable(getattr(cls, "plan", None)):
            raise PluginError(f"strategy {self.name!r}: {cls.__name__} has no method plan(lengths, request)")
        for field in fields(cls):
            if field.default is MISSING and field.default_factory is MISSING:
                raise PluginError(f"strategy {self.name!r}: option {field.name!r} has no default")


@hookspec
def dflash_strategies() -> Iterable[StrategySpec]:
    """The strategies that a plugin offers."""
    return ()
