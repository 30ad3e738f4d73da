"""The pytest plugin, in runs of pytest of their own, with the plugin as an installation has it."""

from __future__ import annotations

import pytest

from dflash.bench import pytest_plugin
from dflash.config import dump_config

pytest_plugins = ["pytester"]

XDIST_WORKER = "PYTEST_XDIST_WORKER"


@pytest.fixture
def project(pytester, small_config):
    """A project whose tests measure the small run: `arguments` are those of the mark."""
    (pytester.path / "small.toml").write_text(dump_config(small_config))

    def write(arguments, body="pass", more=""):
        pytester.makepyfile(f"""
import pytest

@pytest.mark.dflash_bench({arguments}, config="small.toml")
def test_strategies(dflash_trial):
    {body}

{more}
""")

    return write


def test_a_met_gate_passes_beside_pytest_benchmark_and_its_table_is_shown(pytester, project):
    project(
        'strategy=["random", "sorted"], fail_on=["padding_efficiency:1%"], rounds=1, windows=3',
        "assert dflash_trial['sorted'].metrics['padding_efficiency'] > 0.95 > "
        "dflash_trial['random'].metrics['padding_efficiency']",
        "def test_other(benchmark):\n    assert benchmark(sum, range(10)) == 45",
    )
    result = pytester.runpytest_subprocess("--strict-markers", "--benchmark-max-time=0.01")
    result.assert_outcomes(passed=2)
    assert result.ret == 0
    result.stdout.fnmatch_lines_random(
        [
            "*- dflash-bench: test_*.py::test_strategies -*",
            "sorted *IMPROVED*",
            "gate * sorted against random, padding_efficiency:1%*",
            "Name (time in *",
        ]
    )
    assert len(list((pytester.path / ".dflash-bench").rglob("*.parquet"))) >= 1


def test_a_gate_that_is_not_met_fails_a_test_that_does_not_even_ask(pytester, small_config):
    (pytester.path / "small.toml").write_text(dump_config(small_config))
    pytester.makepyfile("""
import pytest

pytestmark = pytest.mark.dflash_bench(
    strategy="sorted,random", fail_on=["padding_efficiency:1%"], quick=True, verbose=False,
    config="small.toml", reference=None,
)

def test_strategies():
    pass
""")
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(failed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "dflash-bench: REGRESSED, exit code 1",
            "REGRESSED  random against sorted, padding_efficiency:1%: padding_efficiency *: worse",
        ]
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ('strategy="no_such", quick=True', "*unknown strategy*no_such*"),
        ('strategy="random", no_such_option=3', "*No such option*--no-such-option*"),
        ('"random"', "*takes arguments by name, such as strategy='random'*"),
    ],
)
def test_a_wrong_mark_is_an_error_in_words(pytester, project, arguments, message):
    project(arguments)
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([message])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_the_fixture_without_a_mark_says_what_is_missing(pytester):
    pytester.makepyfile("def test_strategies(dflash_trial):\n    pass")
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*test_strategies needs a mark: @pytest.mark.dflash_bench(strategy=...)"])


def test_under_xdist_it_refuses_and_says_so(pytester, project, monkeypatch):
    project('strategy="random", quick=True', more="def test_other():\n    pass")
    monkeypatch.setenv(XDIST_WORKER, "gw0")
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines(["*refuses to time under pytest-xdist*-n 0*not dflash_bench*"])
    assert not (pytester.path / ".dflash-bench").exists()


def test_in_a_worker_of_xdist_it_refuses_too(pytester, project):
    """Workers have `workerinput` in their config; whoever unset the variable is still one."""
    project('strategy="random", quick=True')
    pytester.makeconftest("def pytest_configure(config):\n    config.workerinput = {'workerid': 'gw0'}")
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*refuses to time under pytest-xdist*"])


def test_collection_imports_nothing_that_costs(pytester, project):
    project('strategy="random"')
    pytester.makeconftest("""
import sys

def pytest_collection_finish(session):
    costly = {"torch", "numpy", "pyarrow", "dflash.bench.run", "dflash.batching"} & sys.modules.keys()
    print("imported:", sorted(costly), "plugin:", "dflash.bench.pytest_plugin" in sys.modules)
""")
    result = pytester.runpytest_subprocess("--collect-only", "-q", "-s")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*::test_strategies", "imported: [[]] plugin: True"])


def test_the_mark_is_listed_and_deselects(pytester, project):
    project('strategy="random"', more="def test_other():\n    pass")
    result = pytester.runpytest_inprocess("--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.dflash_bench(strategy, fail_on, quick, ...): *"])
    result = pytester.runpytest_inprocess("-m", "not dflash_bench")
    result.assert_outcomes(passed=1, deselected=1)


def test_options_are_written_as_on_the_command_line():
    asked = {"strategy": ["a", "b"], "fail_on": ("tok_s:5%",), "quick": True, "strict": False, "seed": 0}
    assert list(pytest_plugin._options(asked | {"data": None})) == [
        "--strategy=a",
        "--strategy=b",
        "--fail-on=tok_s:5%",
        "--quick",
        "--seed=0",
    ]
