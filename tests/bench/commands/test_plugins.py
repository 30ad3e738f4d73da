"""dflash-bench plugins: list, check, new."""

from __future__ import annotations

import json
import re

import pytest

from dflash.testing import RULES


def test_list_as_json_is_all_that_there_is_to_know(bench, third_party):
    env = third_party("descending")
    third_party("lists", start="import no_such_library")
    result = bench("plugins", "list", "--json", "-p", "no:sorted", env=env)
    assert result.code == 0
    listed = json.loads(result.out)
    assert listed["schema_version"] == 1
    by_name = {strategy["name"]: strategy for strategy in listed["strategies"]}
    assert by_name["descending"] | {"sha256": ""} == {
        "name": "descending",
        "summary": "a strategy from elsewhere",
        "options": [{"name": "fancy", "type": "int", "default": "3"}],
        "distribution": "dflash-strategy-descending",
        "version": "1.2",
        "status": "OK",
        "reason": "",
        "sha256": "",
    }
    assert re.fullmatch("[0-9a-f]{64}", by_name["descending"]["sha256"])
    assert by_name["sorted"]["status"] == "blocked"
    assert by_name["lists"]["status"] == "BROKEN"
    assert "No module named 'no_such_library'" in by_name["lists"]["reason"]
    assert len(result.err.splitlines()) == 1, "the warning"


def test_a_name_that_two_distributions_claim_is_listed_twice(bench, third_party):
    third_party("descending", distribution="one")
    listed = bench("plugins", "list", env=third_party("descending", distribution="two"))
    assert listed.code == 0
    assert "also claimed by two 1.2: choose one/descending" in listed.out
    assert "also claimed by one 1.2: choose two/descending" in listed.out
    check = bench("plugins", "check", "descending", env=third_party())
    assert check.code == 2 and "both claim the name" in check.err


def test_check_prints_every_rule(bench, third_party):
    result = bench("plugins", "check", "descending:fancy=4", env=third_party("descending"))
    assert (result.code, result.err) == (0, "")
    first, *rules, last = result.out.splitlines()
    assert first == "descending:fancy=4  (dflash-strategy-descending 1.2)"
    assert last == "    keeps the contract"
    assert [tuple(line.split()[:2]) for line in rules] == [("ok", name) for name in RULES]


@pytest.mark.parametrize(
    ("name", "rules", "reason"),
    [
        ("raises", ["plans-any-lengths"], "no samples, .*raised RuntimeError: cannot plan on Sundays"),
        ("lists", ["plans-any-lengths"], "returned a list instead of a BatchPlan"),
        ("overfills", ["hard-budget"], r"micro-batch \d+ holds \d+ padded tokens"),
        ("repeats", ["exactly-once"], "repeats samples 0"),
    ],
)
def test_check_names_the_broken_rule(bench, third_party, name, rules, reason):
    result = bench("plugins", "check", name, env=third_party(name))
    assert (result.code, result.err) == (2, "")
    assert set(rules) <= set(re.findall(r"^    failed  (\S+)", result.out, re.MULTILINE))
    assert re.search(reason, result.out)
    assert "keeps the contract" not in result.out
    assert re.search(rf"^    \d of {len(RULES)} rules are broken$", result.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", "nope"], "unknown strategy 'nope'"),
        (["check", "bucketed:buckets=0"], "buckets=0: expected at least 1"),
        (["check"], "Missing argument"),
        (["new", "Mine"], "strategy name 'Mine': use a-z"),
        (["new", "mine-"], "no sign last"),
        (["new", "all"], "strategy name 'all'"),
        (["new", "mine", "--dir", "."], "is not empty"),
        (["new", "mine", "--dir", "occupied"], "cannot write occupied"),
        (["list", "-p", "no:nope"], "there is no such plugin"),
        (["list", "--strict"], "--strict"),
    ],
)
def test_misuse_is_one_line_and_exit_2(bench, tmp_path, arguments, words):
    (tmp_path / "occupied").write_text("a file")
    result = bench("plugins", *arguments)
    assert result.code == 2
    assert re.search(words, result.err)
    assert len(result.err.splitlines()) == 1 and not result.out


def test_new_writes_a_package_for_any_name(bench, tmp_path):
    for name, package, cls in [("mine", "mine", "Mine"), ("my-own_2", "my_own_2", "MyOwn2")]:
        result = bench("plugins", "new", name)
        assert (result.code, result.err) == (0, "")
        folder = tmp_path / f"dflash-strategy-{name}"
        assert str(folder.name) in result.out
        code = (folder / "src" / f"dflash_strategy_{package}" / "strategy.py").read_text()
        assert f"class {cls}:" in code and f'StrategySpec("{name}"' in code
        assert f'{name} = "dflash_strategy_{package}.strategy"' in (folder / "pyproject.toml").read_text()
        assert not [file for file in folder.rglob("*") if file.is_file() and "$" in file.read_text()]
    again = bench("plugins", "new", "mine")
    assert again.code == 2 and "dflash-strategy-mine is not empty" in again.err
