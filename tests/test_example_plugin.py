"""plugins/example: what `plugins new` writes, as its author builds it, tests it and has it used."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from commands import command, run_command

from dflash.config import dump_config
from dflash.testing import RULES

EXAMPLE = Path(__file__).parents[1] / "plugins" / "example"


def files(folder):
    """Texts by path, without what tools leave behind."""
    return {
        str(file.relative_to(folder)): file.read_text()
        for file in folder.rglob("*")
        if file.is_file() and not any(part.startswith((".", "__")) for part in file.parent.parts)
    }


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The Python of a new environment that has the example's wheel, and sees the packages of this one."""
    folder = tmp_path_factory.mktemp("example")
    source = shutil.copytree(EXAMPLE, folder / "source")  # setuptools writes beside the code
    pip("wheel", "--no-index", "--no-deps", "--no-build-isolation", "-w", folder, source)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    scheme = {"base": str(folder / "env"), "platbase": str(folder / "env")}
    packages = Path(sysconfig.get_path("purelib", "venv", scheme))
    here = sysconfig.get_path("purelib")
    (packages / "this_environment.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    python = folder / "env" / "bin" / "python"
    pip("--python", python, "install", "--no-index", "--no-deps", wheel)
    return python


def pip(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def bench(python, folder, *arguments):
    """dflash-bench in that environment."""
    _, *rest = command("dflash-bench", *arguments)
    code = "import sys; from dflash.bench.cli import main; sys.argv[0] = 'dflash-bench'; main()"
    return subprocess.run(
        [python, "-c", code, *rest], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )


def test_the_example_is_what_new_writes(tmp_path):
    result = run_command("dflash-bench", "plugins", "new", "example", "--dir", "package", cwd=tmp_path)
    assert result.code == 0, result.err
    assert files(tmp_path / "package") == files(EXAMPLE)


def test_its_own_tests_pass_where_it_is_installed(installed, tmp_path):
    test = shutil.copy(EXAMPLE / "tests" / "test_strategy.py", tmp_path)
    options = ["-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [installed, "-m", "pytest", *options, test], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert f"{2 * len(RULES)} passed" in done.stdout


def test_it_is_planned_beside_the_built_ins(installed, tmp_path):
    lengths = "lognormal:median=100:min=10:max=400:n=5000"
    arguments = ["--lengths", lengths, "--token-budget", "4000", "--json", "-"]
    done = bench(installed, tmp_path, "plan", "-s", "random,example,example:pool=100,sorted", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    arms = {arm["strategy"]: arm for arm in json.loads(done.stdout)["arms"]}
    assert arms["example"]["plugin"]["distribution"] == "dflash-strategy-example"
    assert arms["example"]["options"] == {"pool": 1000}
    padding = [arms[name]["metrics"]["padding_efficiency"] for name in arms]
    random, large_pool, small_pool, sorted_ = padding
    assert random < small_pool < large_pool < sorted_
    missing = run_command("dflash-bench", "plan", "-s", "example", *arguments, cwd=tmp_path)
    assert missing.code == 2 and "unknown strategy 'example'" in missing.err, "only in that environment"


def test_it_trains_beside_the_built_ins(installed, small_config, tmp_path):
    (tmp_path / "small.toml").write_text(dump_config(small_config))
    settings = ["--config", "small.toml", "--rounds", "1", "--windows", "3", "--json", "out.json"]
    done = bench(installed, tmp_path, "--strategy", "random,example:pool=50", *settings)
    assert done.returncode == 0, done.stderr
    arms = {arm["strategy"]: arm for arm in json.loads((tmp_path / "out.json").read_text())["arms"]}
    assert arms["example:pool=50"]["metrics"]["tok_s"] > 0
    assert arms["example:pool=50"]["plugin"]["distribution"] == "dflash-strategy-example"
    assert os.listdir(tmp_path / ".dflash-bench")
