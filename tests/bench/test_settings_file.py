from __future__ import annotations

from pathlib import Path

import click
import pytest

from dflash.bench.commands.plan import plan
from dflash.bench.commands.run import run
from dflash.bench.settings_file import defaults, has_gate
from dflash.errors import UsageError


def project(folder: Path, text: str) -> Path:
    (folder / "pyproject.toml").write_text(text)
    return folder


def test_the_nearest_pyproject_that_has_the_table_counts(tmp_path: Path) -> None:
    project(tmp_path, '[tool.dflash-bench]\nstrategy = "random"\nfail-on = ["tok_s:5%"]\nmax-time = "4m"\n')
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    project(deep.parent, "[tool.other]\n")
    assert has_gate(deep)
    found = {"strategies": ["random"], "fail_on": ["tok_s:5%"], "max_time": "4m"}
    assert defaults(run, None, deep) == found
    project(deep, "[tool.dflash-bench]\nrounds = 3\n")
    assert defaults(run, None, deep) == {"rounds": 3} and not has_gate(deep)


def test_a_given_file_comes_before_the_projects_and_each_command_has_its_table(tmp_path: Path) -> None:
    project(tmp_path, "[tool.dflash-bench]\nrounds = 3\nwindows = 5\n[tool.dflash-bench.plan]\nseed = 9\n")
    file = tmp_path / "c.toml"
    file.write_text("[batching]\ntoken_budget = 99\n[bench]\nrounds = 7\n[bench.plan]\nepoch = 2\n")
    assert defaults(run, file, tmp_path) == {"rounds": 7, "windows": 5}
    assert defaults(plan, file, tmp_path) == {"seed": 9, "epoch": 2}


def test_paths_start_from_the_files_folder_where_something_is_there(tmp_path: Path) -> None:
    project(tmp_path, '[tool.dflash-bench]\nbaseline = "gate/b.json"\ndata = "sample"\n')
    (tmp_path / "gate").mkdir()
    (tmp_path / "gate" / "b.json").touch()
    assert defaults(run, None, tmp_path) == {"baseline": str(tmp_path / "gate/b.json"), "data": "sample"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[bench]\nfailon = 1\n", "run has no option 'failon'; it has against, baseline"),
        ("[bench]\nrounds = [1, 2]\n", "rounds takes one value"),
        ("[bench]\nrounds = 2020-01-01\n", "no text, number"),
        ("bench = 3\n", "not a table"),
        ("[bench\n", "not valid TOML"),
        ('[bench]\nconfig = "x"\n', "no option 'config'"),
    ],
)
def test_mistakes_are_named_with_the_file(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=words) as raised:
        defaults(run, file, tmp_path)
    assert str(file) in str(raised.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*none\.toml"):
        defaults(run, tmp_path / "none.toml", tmp_path)


def test_every_option_can_stand_in_a_file() -> None:
    """Two options must not share a key, or a file could not say which one it means."""
    for command in (run, plan):
        names = [
            option
            for parameter in command.params
            if isinstance(parameter, click.Option)
            for option in parameter.opts
            if option.startswith("--")
        ]
        assert len(names) == len(set(names)) > 10
