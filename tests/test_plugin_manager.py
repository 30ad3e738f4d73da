"""The loader, on real distributions: a folder with a module and its metadata, on sys.path."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import dflash
from dflash.batching.options import Option
from dflash.batching.plan import PlanRequest
from dflash.batching.planning import make_plan
from dflash.errors import PlanError, PluginError, UsageError
from dflash.plugin_manager import PluginManager, PluginWarning, StrategyRecord

REVERSED = """
from dataclasses import dataclass
from dflash.hookspecs import StrategySpec, hookimpl

@dataclass(frozen=True)
class Reversed:
    step: int = 1

    def plan(self, lengths, request):
        import numpy as np
        from dflash.batching import packing, windows
        samples = np.arange(len(lengths))[::-1].copy()
        offsets = packing.greedy(lengths, samples, request.token_budget)
        return windows.build(samples, offsets, lengths, request, order="given")

@hookimpl
def dflash_strategies():
    return [StrategySpec("{name}", "the last sample first", Reversed)]
"""

BUILT_IN = ["bucketed", "first_fit", "packed", "random", "sorted", "step_window", "windowed"]

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a distribution: its entry points, name to module, and its modules' sources."""
    before = set(sys.modules)
    monkeypatch.delenv("DFLASH_DISABLE_PLUGIN_AUTOLOAD", raising=False)

    def put(distribution: str, version: str, entry_points: dict[str, str], **modules: str) -> Path:
        site = tmp_path / f"{distribution}-{version}-site"
        info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        lines = [f"{name} = {module}" for name, module in entry_points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[dflash]", *lines, ""]))
        for module, source in modules.items():
            (site / f"{module}.py").write_text(source)
        monkeypatch.syspath_prepend(site)
        return site

    yield put
    for module in set(sys.modules) - before:
        if module.startswith("plugin_"):
            del sys.modules[module]


def source(name: str) -> str:
    return REVERSED.replace("{name}", name)


def by_name(manager: PluginManager, name: str) -> StrategyRecord:
    (record,) = [record for record in manager.strategies() if record.name == name]
    return record


def test_the_built_ins_are_plugins_like_any_other() -> None:
    records = PluginManager().strategies()
    ours = {record.name: record for record in records if record.distribution == "dflash"}
    assert list(ours) == BUILT_IN
    assert {record.status for record in ours.values()} == {"OK"}
    assert {record.version for record in ours.values()} == {dflash.__version__}
    assert ours["sorted"].options == (
        Option("order", "length|shuffled", "length"),
        Option("frozen", "bool", "false"),
    )
    for name, record in ours.items():
        file = Path(__file__).parents[1] / "plugins" / "dflash_plugins" / f"{name}.py"
        assert record.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
        assert "\n" not in record.summary


def test_listing_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from dflash.plugin_manager import PluginManager\n"
        "PluginManager().strategies()\n"
        "print([name for name in ('numpy', 'numba', 'torch', 'pandas', 'pyarrow') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-W", "ignore", "-c", program], text=True) == "[]\n"


def test_a_third_party_strategy_is_listed_and_runs(install: Install) -> None:
    site = install("dflash-strategy-x", "1.2", {"x": "plugin_x"}, plugin_x=source("x"))
    manager = PluginManager()
    record = by_name(manager, "x")
    assert (record.distribution, record.version, record.status) == ("dflash-strategy-x", "1.2", "OK")
    assert record.sha256 == hashlib.sha256((site / "plugin_x.py").read_bytes()).hexdigest()
    assert record.options == (Option("step", "int", "1"),)
    (arm,) = manager.arms("x:step=2")
    assert (arm.name, arm.options, arm.record) == ("x:step=2", {"step": 2}, record)
    plan, _ = make_plan(arm.strategy, [3, 4, 5], PlanRequest(5, 0, 0, 1, 1, "spread"), name=arm.name)
    assert plan.samples.tolist() == [2, 1, 0]


def test_nothing_is_imported_before_it_is_needed(install: Install) -> None:
    install("lazy", "1.0", {"lazy": "plugin_lazy"}, plugin_lazy=source("lazy"))
    manager = PluginManager()
    assert "plugin_lazy" not in sys.modules
    manager.get("lazy")
    assert "plugin_lazy" in sys.modules


def test_a_name_that_two_distributions_claim(install: Install) -> None:
    install("one", "1.0", {"same": "plugin_one"}, plugin_one=source("same"))
    install("two", "2.5", {"same": "plugin_two"}, plugin_two=source("same"))
    manager = PluginManager()
    with pytest.raises(PluginError) as raised:
        manager.get("same")
    assert str(raised.value) == (
        "one 1.0 and two 2.5 both claim the name 'same': choose one/same or two/same"
    )
    assert not {"plugin_one", "plugin_two"} & set(sys.modules)  # known before anything is imported
    assert manager.get("one/same").distribution == "one"
    assert manager.get("Two/same").distribution == "two"
    listed = [record for record in manager.strategies() if record.name == "same"]
    assert [record.reason for record in listed] == [
        "also claimed by two 2.5: choose one/same",
        "also claimed by one 1.0: choose two/same",
    ]
    assert [arm.name for arm in manager.arms("two/same:step=3,one/same,random,dflash/sorted")] == [
        "two/same:step=3",
        "one/same",
        "random",
        "sorted",
    ]
    assert PluginManager(blocked=["one/same"]).get("same").distribution == "two"


def test_a_strategy_name_claimed_behind_different_entry_points(install: Install) -> None:
    install("thief", "0.1", {"other": "plugin_thief"}, plugin_thief=source("random"))
    manager = PluginManager()
    with pytest.raises(PluginError, match=r"dflash .* and thief 0\.1 both claim the name 'random'"):
        manager.get("random")
    assert manager.get("dflash/random").distribution == "dflash"
    assert manager.get("sorted").name == "sorted"  # the others are not affected


def test_one_distribution_may_not_claim_a_name_twice(install: Install) -> None:
    install(
        "double",
        "1.0",
        {"first": "plugin_first", "second": "plugin_second"},
        plugin_first=source("double"),
        plugin_second=source("double"),
    )
    manager = PluginManager()
    with pytest.warns(PluginWarning, match="double/second 1.0 is BROKEN: its distribution claims the name"):
        assert manager.get("double").status == "OK"
    assert by_name(manager, "second").status == "BROKEN"


BROKEN = {
    "import": ("import no_such_module_at_all", "ModuleNotFoundError: No module named"),
    "exit": ("raise SystemExit(3)", "SystemExit: 3"),
    "syntax": ("def (", "SyntaxError"),
    "no hook": ("x = 1", "implements no hook of dflash; is @hookimpl missing?"),
    "misspelt": (source("bad").replace("def dflash_strategies", "def dflash_strategy"), "unknown hook"),
    "arguments": (source("bad").replace("strategies()", "strategies(seed)"), "seed"),
    "version": ("DFLASH_API_VERSION = 99\n" + source("bad"), "written for plugin API 99, this dflash has 1"),
    "name": (source("Not Good"), "strategy name 'Not Good'"),
    "all": (source("all"), "strategy name 'all': it stands for every strategy"),
    "mutable": (source("bad").replace("frozen=True", "frozen=False"), "is not a frozen dataclass type"),
    "no default": (source("bad").replace("int = 1", "int"), "option 'step' has no default"),
    "no plan": (source("bad").replace("def plan(", "def planned("), "has no method plan"),
    "no summary": (source("bad").replace("the last sample first", ""), "summary must be one line"),
    "not a spec": (source("bad").replace("return [", "return [1, "), "gave a int instead of a StrategySpec"),
    "raises": (source("bad").replace("    return [", "    return 1 / 0, ["), "ZeroDivisionError"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plugin_is_shown_and_harms_no_other(install: Install, case: str) -> None:
    """simonw/llm#1280: one broken plugin ended every command."""
    text, reason = BROKEN[case]
    install("breaks", "0.3", {"bad": "plugin_bad"}, plugin_bad=text)
    manager = PluginManager()
    with pytest.warns(PluginWarning, match=r"plugin breaks/bad 0\.3 is BROKEN"):
        record = by_name(manager, "bad")
    assert (record.status, record.distribution, record.version) == ("BROKEN", "breaks", "0.3")
    assert reason in record.reason
    assert "\n" not in record.reason
    assert manager.get("random").status == "OK"
    with pytest.raises(PluginError, match=r"plugin breaks/bad 0\.3 is BROKEN"):
        manager.arms("random,bad")


def test_a_broken_plugin_is_fatal_under_strict(install: Install) -> None:
    install("breaks", "0.3", {"bad": "plugin_bad"}, plugin_bad="import no_such_module_at_all")
    manager = PluginManager(strict=True)
    for _ in range(2):
        with pytest.raises(PluginError, match=r"plugin breaks/bad 0\.3 is BROKEN"):
            manager.get("random")
    assert PluginManager(strict=True, blocked=["bad"]).get("random").status == "OK"


def test_a_blocked_plugin_is_not_imported(install: Install) -> None:
    install("dflash-strategy-x", "1.2", {"x": "plugin_x"}, plugin_x=source("x"))
    manager = PluginManager(blocked=["x"])
    record = by_name(manager, "x")
    assert (record.status, record.reason) == ("blocked", "by -p no:x")
    assert "plugin_x" not in sys.modules
    with pytest.raises(PluginError, match=r"plugin dflash-strategy-x/x 1\.2 is blocked: by -p no:x"):
        manager.get("x")
    with pytest.raises(UsageError, match=r"no:y: there is no such plugin; there are .*bucketed"):
        PluginManager(blocked=["y"])


@pytest.mark.parametrize(("value", "status"), [("1", "blocked"), ("yes", "blocked"), ("0", "OK"), ("", "OK")])
def test_without_autoload_only_our_own_are_loaded(
    install: Install, monkeypatch: pytest.MonkeyPatch, value: str, status: str
) -> None:
    install("dflash-strategy-x", "1.2", {"x": "plugin_x"}, plugin_x=source("x"))
    monkeypatch.setenv("DFLASH_DISABLE_PLUGIN_AUTOLOAD", value)
    manager = PluginManager()
    assert by_name(manager, "x").status == status
    assert ("plugin_x" in sys.modules) == (status == "OK")
    assert manager.get("random").status == "OK"


def test_an_unknown_strategy_names_what_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASH_DISABLE_PLUGIN_AUTOLOAD", "1")  # whatever else this installation has
    manager = PluginManager()
    with pytest.raises(UsageError) as raised:
        manager.get("nope")
    assert str(raised.value) == f"unknown strategy 'nope'; available: {', '.join(BUILT_IN)}"
    assert raised.value.exit_code == 2
    with pytest.raises(
        UsageError, match=r"^unknown strategy 'bucketd'; did you mean 'bucketed'\? available: "
    ):
        manager.get("bucketd")
    with pytest.raises(UsageError, match="unknown strategy 'other/random'"):
        manager.get("other/random")


def test_arms_are_named_once_each() -> None:
    """The same strategy with other options is another arm; with its defaults spelt out it is the same."""
    manager = PluginManager()
    with pytest.warns(PluginWarning, match="strategy bucketed is named twice; taken once"):
        arms = manager.arms("bucketed, random, bucketed:buckets=16, bucketed:buckets=8")
    assert [arm.name for arm in arms] == ["bucketed", "random", "bucketed:buckets=16"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert manager.arms("bucketed:buckets=16")[0] == arms[2]


def test_all_is_every_strategy_that_is_ok(install: Install) -> None:
    install("one", "1.0", {"same": "plugin_one"}, plugin_one=source("same"))
    install("two", "2.5", {"same": "plugin_two"}, plugin_two=source("same"))
    install("breaks", "0.3", {"bad": "plugin_bad"}, plugin_bad="import no_such_module_at_all")
    manager = PluginManager(blocked=["sorted"])
    with pytest.warns(PluginWarning) as warned:
        arms = manager.arms("bucketed:buckets=3,all")
    assert [str(warning.message) for warning in warned] == [by_name(manager, "bad").trouble]
    mine = [arm.name for arm in arms if arm.record.distribution in ("dflash", "one", "two")]
    others = [name for name in BUILT_IN if name != "sorted"]
    assert sorted(mine) == sorted(["bucketed:buckets=3", *others, "one/same", "two/same"])
    with pytest.raises(UsageError, match="unknown strategy 'all'"):
        manager.arms("all:buckets=3")


def test_all_of_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASH_DISABLE_PLUGIN_AUTOLOAD", "1")
    with pytest.raises(UsageError, match="strategy 'all': none of this installation can be used"):
        PluginManager(blocked=BUILT_IN).arms("all")


def test_a_strategy_of_another_package_that_cheats_is_refused_by_name(install: Install) -> None:
    cheating = source("cheat").replace(
        "samples = np.arange(len(lengths))", "samples = 0 * np.arange(len(lengths))"
    )
    install("cheats", "1.0", {"cheat": "plugin_cheat"}, plugin_cheat=cheating)
    (arm,) = PluginManager().arms("cheat")
    lengths = np.array([3, 4, 5])
    with pytest.raises(PlanError, match="strategy 'cheat' returned a wrong plan: 1 samples are planned more"):
        make_plan(arm.strategy, lengths, PlanRequest(15, 0, 0, 1, 1, "spread"), name=arm.name)


def test_a_plugin_in_a_fresh_process(install: Install) -> None:
    site = install("dflash-strategy-x", "1.2", {"x": "plugin_x"}, plugin_x=source("x"))
    program = (
        "import json, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from dflash.plugin_manager import PluginManager\n"
        "print(json.dumps([record.full_name for record in PluginManager().strategies()]))"
    )
    output = subprocess.check_output([sys.executable, "-c", program, str(site)], text=True)
    assert "dflash-strategy-x/x" in json.loads(output)
