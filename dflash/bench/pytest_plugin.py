"""A pytest plugin: a project measures its strategies, and holds gates, inside its own tests.

    @pytest.mark.dflash_bench(strategy="random,mine", fail_on=["tok_s:5%", "padding_efficiency:0.1%"])
    def test_mine_is_no_slower(dflash_trial):
        assert dflash_trial["mine"].metrics["padding_efficiency"] > 0.95

The mark's arguments are the long options of `dflash-bench run`, which is run in a process of its own: the
tests' process has loaded who knows what. A gate that is not met fails the test, and a run without a result
is an error of it. Leave such tests out with `-m "not dflash_bench"`.

Every pytest of this installation imports this module, so it imports nothing that costs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dflash.bench.results import Arm, Run

_MARK = "dflash_bench"
_COMMAND = [sys.executable, "-c", "from dflash.bench.cli import main; main()", "run"]
_UNDER_XDIST = (
    "dflash-bench refuses to time under pytest-xdist, whose workers disturb each other: run these tests "
    f'alone with -n 0, or leave them out with -m "not {_MARK}"'
)


@dataclass(frozen=True)
class Bench:
    """A finished run: its record, and what `dflash-bench` printed."""

    run: Run
    report: str

    def __getitem__(self, strategy: str) -> Arm:
        """The arm of this display name; KeyError if the run has none."""
        for arm in self.run.arms:
            if arm.strategy == strategy:
                return arm
        raise KeyError(f"{strategy!r} is none of {', '.join(arm.strategy for arm in self.run.arms)}")


_BENCHES = pytest.StashKey[dict[str, Bench]]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{_MARK}(strategy, fail_on, quick, ...): measure strategies before the test, and fail it by its "
        "gates; the arguments are the long options of `dflash-bench run`",
    )
    config.stash[_BENCHES] = {}


@pytest.fixture
def dflash_trial(request: pytest.FixtureRequest) -> Bench:
    """The run that the test's `dflash_bench` mark asks for, measured before the test begins."""
    mark = request.node.get_closest_marker(_MARK)
    if mark is None:
        pytest.fail(f"{request.node.name} needs a mark: @pytest.mark.{_MARK}(strategy=...)", pytrace=False)
    if mark.args:
        pytest.fail(f"{_MARK} takes arguments by name, such as strategy={mark.args[0]!r}", pytrace=False)
    if hasattr(request.config, "workerinput") or "PYTEST_XDIST_WORKER" in os.environ:
        pytest.fail(_UNDER_XDIST, pytrace=False)
    bench = _measured(mark.kwargs, request.config.rootpath, request.getfixturevalue("tmp_path"))
    request.config.stash[_BENCHES][request.node.nodeid] = bench
    return bench


@pytest.fixture(autouse=True)
def _dflash_bench(request: pytest.FixtureRequest) -> None:
    """A marked test is measured whether or not it asks for the figures."""
    if request.node.get_closest_marker(_MARK) is not None:
        request.getfixturevalue("dflash_trial")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """After a test that passed by itself, its gates."""
    result = yield
    bench = item.config.stash[_BENCHES].get(item.nodeid)
    if bench is not None and bench.run.exit_code:
        pytest.fail("\n".join(_reasons(bench.run)), pytrace=False)
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for nodeid, bench in terminalreporter.config.stash[_BENCHES].items():
        terminalreporter.write_sep("-", f"dflash-bench: {nodeid}")
        terminalreporter.write(f"{bench.report}\n")


def _measured(asked: Mapping[str, Any], folder: Path, scratch: Path) -> Bench:
    """Run the command; where it leaves no result, the test is an error with what it said."""
    file = scratch / "dflash-bench.json"
    command = [*_COMMAND, *_options(asked), "--quiet", f"--json={file}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if not file.exists():
        said = done.stderr.strip() or f"no result, exit code {done.returncode}"
        pytest.fail(f"dflash-bench: {said}", pytrace=False)
    import msgspec

    from dflash.bench.results import Run

    return Bench(msgspec.json.decode(file.read_bytes(), type=Run), done.stdout)


def _options(asked: Mapping[str, Any]) -> Iterator[str]:
    """Options as on the command line: a list repeats one, True is a flag, False and None leave it out."""
    for name, value in asked.items():
        option = f"--{name.replace('_', '-')}"
        for one in value if isinstance(value, list | tuple) else [value]:
            if one is True:
                yield option
            elif one is not None and one is not False:
                yield f"{option}={one}"


def _reasons(run: Run) -> Iterator[str]:
    """Why a run's exit code is not 0."""
    from dflash.bench import findings

    yield f"dflash-bench: {run.verdict}, exit code {int(run.exit_code)}"
    for arm in run.arms:
        if arm.error is not None:
            yield f"ERROR  {arm.strategy}: {arm.error}"
    for gate in run.gates:
        if findings.gate_code(gate, run):
            yield f"{gate.verdict or 'no verdict'}  {findings.title(gate)}: {findings.reason(gate)}"
