"""Finds, loads, blocks and lists plugins.

The loader is our own on top of pluggy. Here two packages that claim one name are an error that names both,
and a package that cannot be imported is BROKEN without taking the others with it.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import pluggy

from dflash import hookspecs
from dflash.batching import options
from dflash.batching.options import Option, parse_strategies
from dflash.errors import PluginError, UsageError
from dflash.hookspecs import ALL, API_VERSION, GROUP, Observer, ObserverSpec, StrategySpec

if TYPE_CHECKING:
    from dflash.batching.plan import Strategy

__all__ = [
    "Arm",
    "NamedObserver",
    "ObserverRecord",
    "PluginManager",
    "PluginWarning",
    "StrategyRecord",
    "parse_strategies",
]

AUTOLOAD_VARIABLE = "DFLASH_DISABLE_PLUGIN_AUTOLOAD"
OWN_DISTRIBUTION = "dflash"

Status = Literal["OK", "BROKEN", "blocked"]


class PluginWarning(UserWarning):
    """A plugin is left out, or a strategy was named twice."""


@dataclass(frozen=True)
class StrategyRecord:
    """A strategy as listed. One that is not OK stands for its whole plugin, by the entry point's name."""

    name: str
    summary: str
    options: tuple[Option, ...]
    distribution: str
    version: str
    status: Status
    reason: str = ""
    sha256: str = ""  # of the file that defines the strategy
    strategy: type[Strategy] | None = None
    contested: bool = False  # another distribution claims the name too

    @property
    def usable(self) -> bool:
        return self.status == "OK"

    @property
    def trouble(self) -> str:
        """Why it cannot be used, in one line."""
        return f"plugin {self.full_name} {self.version} is {self.status}: {self.reason}"

    @property
    def unique_name(self) -> str:
        """The name, after its distribution where the name alone is ambiguous."""
        return self.full_name if self.contested else self.name

    @property
    def full_name(self) -> str:
        """`distribution/name`, which is never ambiguous."""
        return f"{self.distribution}/{self.name}"


@dataclass(frozen=True)
class Arm:
    """A strategy with its options set. Its name is the strategy's and all options not at their default."""

    name: str
    record: StrategyRecord
    strategy: Strategy

    @property
    def options(self) -> dict[str, Any]:
        """All options and their values."""
        return asdict(self.strategy)  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True)
class ObserverRecord:
    """An observer as listed. A plugin that is BROKEN or blocked stands among the strategies."""

    name: str
    summary: str
    options: tuple[Option, ...]
    distribution: str
    version: str
    observer: type[Observer]
    usable: Literal[True] = True

    @property
    def full_name(self) -> str:
        """`distribution/name`, which is never ambiguous."""
        return f"{self.distribution}/{self.name}"


@dataclass(frozen=True)
class NamedObserver:
    """An observer with its options set."""

    name: str
    observer: Observer


@dataclass(frozen=True)
class _Plugin:
    """An entry point of the group, not imported yet."""

    name: str
    distribution: str
    version: str
    entry_point: EntryPoint
    blocked: str = ""  # why it is not to be loaded

    @property
    def usable(self) -> bool:
        return not self.blocked

    @property
    def full_name(self) -> str:
        return f"{self.distribution}/{self.name}"

    def record(self, status: Status, reason: str) -> StrategyRecord:
        return StrategyRecord(self.name, "", (), self.distribution, self.version, status, reason)


class PluginManager:
    """All plugins of this installation.

    blocked: names of plugins not to load, plain or `distribution/name`.
    strict: a BROKEN plugin is an error instead of a warning.

    With DFLASH_DISABLE_PLUGIN_AUTOLOAD=1 in the environment only dflash's own are loaded. Nothing is
    imported before the first question that needs it.

    Raises UsageError if a blocked name does not exist.
    """

    def __init__(self, *, blocked: Iterable[str] = (), strict: bool = False) -> None:
        self._strict = strict
        self._pluggy = pluggy.PluginManager(GROUP)
        self._pluggy.add_hookspecs(hookspecs)
        plugins = _found()
        if os.environ.get(AUTOLOAD_VARIABLE, "0") not in ("", "0"):
            reason = f"{AUTOLOAD_VARIABLE} is set"
            plugins = [
                p if p.distribution == OWN_DISTRIBUTION else replace(p, blocked=reason) for p in plugins
            ]
        for name in blocked:
            if not any(_matches(plugin, name) for plugin in plugins):
                known = ", ".join(sorted({plugin.name for plugin in plugins}))
                raise UsageError(f"no:{name}: there is no such plugin; there are {known}")
            reason = f"by -p no:{name}"
            plugins = [replace(p, blocked=reason) if _matches(p, name) else p for p in plugins]
        self._plugins = plugins

    def strategies(self) -> list[StrategyRecord]:
        """All strategies, and the plugins that are BROKEN or blocked, by name and distribution.

        Raises PluginError under `strict` if a plugin is BROKEN.
        """
        if self._strict:
            for record in self._records:
                if record.status == "BROKEN":
                    raise PluginError(record.trouble)
        return list(self._records)

    def get(self, name: str) -> StrategyRecord:
        """The strategy called `name`, plain or `distribution/name`.

        Raises PluginError if two distributions claim the name or its plugin is BROKEN or blocked, and
        UsageError if there is no such strategy.
        """
        _refuse_rivals(name, self._plugins)  # whatever can be known before anything is imported
        records = self.strategies()
        _refuse_rivals(name, records)
        found = [record for record in records if _matches(record, name)]
        for record in found:
            if record.usable:
                return record
        for record in found:
            raise PluginError(record.trouble)
        known = sorted({record.name for record in records if record.usable})
        close = get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ";"
        raise UsageError(f"unknown strategy {name!r}{hint} available: {', '.join(known) or 'none'}")

    def observer_records(self) -> list[ObserverRecord]:
        """All observers, by name and distribution. Raises as `strategies` does."""
        self.strategies()
        return sorted(self._offered, key=lambda record: (record.name, record.full_name))

    def observers(self, text: str) -> list[NamedObserver]:
        """The observers of `name[:option=value...],...` with their options, in order.

        Raises PluginError if two distributions claim a name or its plugin is BROKEN or blocked, and
        UsageError if there is no such observer or option.
        """
        return [
            NamedObserver(
                name, options.construct(f"observer {name!r}", self._observer(name).observer, option_text)
            )
            for name, option_text in parse_strategies(text)
        ]

    def _observer(self, name: str) -> ObserverRecord:
        records = self.observer_records()
        _refuse_rivals(name, records)
        for record in records:
            if _matches(record, name):
                return record
        for plugin in self._records:
            if not plugin.usable and _matches(plugin, name):
                raise PluginError(plugin.trouble)
        known = ", ".join(sorted({record.name for record in records}))
        raise UsageError(f"unknown observer {name!r}; available: {known or 'none'}")

    def arms(self, text: str) -> list[Arm]:
        """The strategies of `name[:option=value...],...` with their options, each once, in order.

        `all` stands for every strategy that is OK, with its default options. Warns of an arm named twice.
        Raises as `get` and `options.build` do, and UsageError if `all` is none.
        """
        arms: dict[str, Arm] = {}
        for name, option_text in self._named(text):
            record = self.get(name)
            assert record.strategy is not None  # `get` returns none but those that are OK
            strategy = options.build(name, record.strategy, option_text)
            arm = Arm(options.canonical(record.unique_name, strategy), record, strategy)
            if arm.name in arms:
                warnings.warn(f"strategy {arm.name} is named twice; taken once", PluginWarning, stacklevel=2)
            arms.setdefault(arm.name, arm)
        return list(arms.values())

    def _named(self, text: str) -> Iterator[tuple[str, str]]:
        for name, option_text in parse_strategies(text):
            if (name, option_text) != (ALL, ""):
                yield name, option_text
                continue
            usable = [record.unique_name for record in self.strategies() if record.usable]
            if not usable:
                raise UsageError(f"strategy {ALL!r}: none of this installation can be used")
            yield from ((name, "") for name in usable)

    @cached_property
    def _records(self) -> list[StrategyRecord]:
        records: list[StrategyRecord] = []
        self._offered: list[ObserverRecord] = []
        for plugin in self._plugins:
            if plugin.blocked:
                records.append(plugin.record("blocked", plugin.blocked))
                continue
            try:
                loaded, offered = self._load(plugin)
                names = [record.full_name for record in [*records, *loaded] if record.usable]
                for name in names:
                    if names.count(name) > 1:
                        raise PluginError(f"its distribution claims the name {name} twice")
                records += loaded
                self._offered += offered
            except (Exception, SystemExit) as error:  # whatever foreign code raises while it is imported
                text = str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"
                records.append(plugin.record("BROKEN", " ".join(text.split())))
                if not self._strict:
                    warnings.warn(records[-1].trouble, PluginWarning, stacklevel=2)
        claims: list[_Plugin | StrategyRecord] = [*self._plugins, *records]
        return sorted(
            (_marked(r, claims) for r in records), key=lambda record: (record.name, record.full_name)
        )

    def _load(self, plugin: _Plugin) -> tuple[list[StrategyRecord], list[ObserverRecord]]:
        module = plugin.entry_point.load()
        version = getattr(module, "DFLASH_API_VERSION", 1)
        if version != API_VERSION:
            raise PluginError(f"written for plugin API {version}, this dflash has {API_VERSION}")
        self._pluggy.register(module, plugin.full_name)
        try:
            self._pluggy.check_pending()  # a misspelt hook
        except pluggy.PluginValidationError:
            self._pluggy.unregister(module)
            raise
        hooks = self._pluggy.hook
        offers, watchers = (
            [one.function for one in hook.get_hookimpls() if one.plugin_name == plugin.full_name]
            for hook in (hooks.dflash_strategies, hooks.dflash_observers)
        )
        if not offers and not watchers:
            raise PluginError("implements no hook of dflash; is @hookimpl missing?")
        return (
            [_listed(plugin, spec) for call in offers for spec in cast("Iterable[object]", call())],
            [_offered(plugin, spec) for call in watchers for spec in cast("Iterable[object]", call())],
        )


def _found() -> list[_Plugin]:
    plugins = []
    for entry_point in entry_points(group=GROUP):
        assert entry_point.dist is not None  # entry_points() sets it for installed distributions
        distribution, version = entry_point.dist.name, entry_point.dist.version
        plugins.append(_Plugin(entry_point.name, distribution, version, entry_point))
    return sorted(plugins, key=lambda plugin: plugin.full_name)


def _matches(item: _Plugin | StrategyRecord | ObserverRecord, name: str) -> bool:
    distribution, _, plain = name.rpartition("/")
    return item.name == plain and _normal(distribution) in ("", _normal(item.distribution))


def _rivals(name: str, items: Sequence[_Plugin | StrategyRecord | ObserverRecord]) -> dict[str, str]:
    """The distributions that claim `name`, and their versions."""
    return {item.distribution: item.version for item in items if item.usable and _matches(item, name)}


def _refuse_rivals(name: str, items: Sequence[_Plugin | StrategyRecord | ObserverRecord]) -> None:
    rivals = _rivals(name, items)
    if len(rivals) > 1:
        claims = " and ".join(f"{distribution} {version}" for distribution, version in rivals.items())
        choices = " or ".join(f"{distribution}/{name}" for distribution in rivals)
        raise PluginError(f"{claims} both claim the name {name!r}: choose {choices}")


def _marked(record: StrategyRecord, claims: Sequence[_Plugin | StrategyRecord]) -> StrategyRecord:
    """A usable record whose name others claim too says so."""
    rivals = _rivals(record.name, claims)
    rivals.pop(record.distribution, None)
    if not rivals or not record.usable:
        return record
    others = ", ".join(f"{distribution} {version}" for distribution, version in rivals.items())
    return replace(record, contested=True, reason=f"also claimed by {others}: choose {record.full_name}")


def _normal(distribution: str) -> str:
    """As PEP 503 compares the names of distributions."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _listed(plugin: _Plugin, spec: object) -> StrategyRecord:
    if not isinstance(spec, StrategySpec):
        raise PluginError(f"dflash_strategies() gave a {type(spec).__name__} instead of a StrategySpec")
    return StrategyRecord(
        name=spec.name,
        summary=spec.summary,
        options=options.describe(spec.strategy),
        distribution=plugin.distribution,
        version=plugin.version,
        status="OK",
        sha256=hashlib.sha256(Path(inspect.getfile(spec.strategy)).read_bytes()).hexdigest(),
        strategy=spec.strategy,
    )


def _offered(plugin: _Plugin, spec: object) -> ObserverRecord:
    if not isinstance(spec, ObserverSpec):
        raise PluginError(f"dflash_observers() gave a {type(spec).__name__} instead of an ObserverSpec")
    return ObserverRecord(
        name=spec.name,
        summary=spec.summary,
        options=options.describe(spec.observer),
        distribution=plugin.distribution,
        version=plugin.version,
        observer=spec.observer,
    )
