"""Gates as a CI job meets them: exit codes, what is said, what is kept."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from repositories import commit, git

import dflash
import dflash_plugins
from dflash.bench import store

FAST = ("--rounds", "1", "--windows", "3")
PLAN = ("plan", "--lengths", "lognormal:median=200:max=2000:n=2000")


def edited(folder: Path) -> dict[str, str]:
    """The code copied to ``folder`` as a repository, where bucketed has since lost half of its buckets."""
    for package, place in ((dflash, "dflash"), (dflash_plugins, "plugins/dflash_plugins")):
        code = Path(str(package.__file__)).parent
        shutil.copytree(code, folder / place, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / ".gitignore").write_text("__pycache__/\n.dflash-bench/\n/*.toml\n")
    commit(folder)
    code = folder / "plugins" / "dflash_plugins" / "bucketed.py"
    text = code.read_text()
    code.write_text(text.replace("buckets: int = 8", "buckets: int = 2"))
    assert code.read_text() != text
    return {"PYTHONPATH": f"{folder}:{folder / 'plugins'}"}


def test_an_exact_figure_of_two_arms_is_gated_in_one_pair(bench, small_file, tmp_path):
    (tmp_path / "summary.md").write_text("before\n")
    result = bench(
        *("-s", "sorted,random", *FAST, "--config", small_file, "--fail-on", "padding_efficiency:1%"),
        *("--json", "out.json", "--junit", "out.xml", "--markdown", "out.md", "-q"),
        "--github-summary",
        env={"GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")},
    )
    assert result.code == 1, result.err
    assert re.search(r"REGRESSED\s+random against sorted.*padding_efficiency", result.out)
    run = json.loads((tmp_path / "out.json").read_text())
    (gate,) = [one for one in run["comparisons"] if one["gate"]]
    assert (gate["strategy"], gate["verdict"], gate["tolerance"]) == ("random", "REGRESSED", 0.01)
    assert (run["exit_code"], run["looks"], run["invalid_pairs"]) == (1, [1], [])
    assert run["settings"]["gates"] == ["padding_efficiency:1%"]
    assert run["class_key"] and run["command_line"][1:3] == ["-s", "sorted,random"]
    assert "REGRESSED" in (tmp_path / "out.md").read_text()
    assert (tmp_path / "summary.md").read_text() == "before\n" + (tmp_path / "out.md").read_text()
    assert "<failure" in (tmp_path / "out.xml").read_text()
    assert not result.err, "-q"

    # The same pairs, judged again without measuring.
    again = bench("compare", "last", "--fail-on", "padding_efficiency:1%", "--json", "-")
    assert again.code == 1
    assert [one for one in json.loads(again.out)["comparisons"] if one["gate"]] == [gate]
    assert bench("compare", "last", "--fail-on", "padding_efficiency:99%").code == 0
    same = bench("compare", "last", "last", "--fail-on", "padding_efficiency:0.1%")
    assert same.code == 0 and re.search(r"OK\s+random against run 01", same.out)

    # As a baseline: exact figures hold, a clock is advice, and a strategy that vanished is exit 5.
    assert bench("baseline", "save", "main").code == 0
    assert bench("baseline", "list").out.startswith("main  sorted, random")
    run_again = (*FAST, "--config", small_file, "--baseline", "main", "--fail-on", "padding_efficiency:0.1%")
    gone = bench("-s", "random", *run_again, "--json", "gone.json")
    assert gone.code == 5
    assert re.search(r"NO_BASELINE\s+sorted against baseline main.*was not run", gone.out)
    comparisons = json.loads((tmp_path / "gone.json").read_text())["comparisons"]
    verdicts = {(one["strategy"], one["metric"]): one["verdict"] for one in comparisons if one["gate"]}
    assert verdicts == {
        ("random", "padding_efficiency"): "OK",
        ("sorted", "padding_efficiency"): "NO_BASELINE",
    }
    assert [one["advisory"] for one in comparisons if one["metric"] == "tok_s"] == [True]

    listed = bench("show", "--list").out.splitlines()
    assert len(listed) == 2 and "exit 1" in listed[0] and "exit 5" in listed[1]
    exported = bench("export", "csv", listed[0][:26], "--table", "comparisons")
    assert exported.out.splitlines()[0].startswith("run_id,strategy,reference,metric,")
    rows = json.loads(bench("export", "json", "--table", "windows").out)
    assert len(rows) == 3 and all(row["real_tokens"] > 0 for row in rows)
    assert bench("baseline", "rm", "main").code == 0 and bench("baseline", "list").out == ""


def test_a_strategy_is_gated_against_itself_at_another_revision(bench, small_file, tmp_path):
    env = edited(tmp_path)
    result = bench(
        *("-s", "bucketed", *FAST, "--config", small_file, "--against", "HEAD", "--json", "out.json"),
        *("--fail-on", "padding_efficiency:0.1%"),
        env=env,
    )
    assert result.code == 1, result.err
    assert re.search(r"REGRESSED\s+bucketed against bucketed@HEAD.*padding_efficiency", result.out)
    run = json.loads((tmp_path / "out.json").read_text())
    head = git(tmp_path, "rev-parse", "HEAD")
    assert run["revision"] == {"commit": head, "dirty": True}
    assert run["against"] == {"commit": head, "dirty": False}
    then, now = run["arms"]
    assert (then["strategy"], then["revision"], now["revision"]) == ("bucketed@HEAD", head, None)
    assert then["plugin"]["file_hash"] != now["plugin"]["file_hash"]
    assert then["plan"]["digest"] != now["plan"]["digest"]
    assert git(tmp_path, "worktree", "list").count("\n") == 0


def test_plans_are_gated_against_a_baseline_without_a_trial(bench, tmp_path):
    saved = bench(*PLAN, "-s", "bucketed,random", "--json", "plans.json")
    assert saved.code == 0
    assert bench("baseline", "save", "gate/b.json", "plans.json").code == 0
    gate = ("--baseline", "gate/b.json", "--fail-on", "padding_efficiency:0.1%")
    assert bench(*PLAN, "-s", "bucketed,random", *gate).code == 0
    worse = bench(*PLAN, "-s", "bucketed,random", *gate, env=edited(tmp_path))
    assert worse.code == 1
    assert re.search(r"REGRESSED\s+bucketed against b.json.*padding_efficiency", worse.out)
    assert "1 of 2 hold" in worse.out
    assert bench(*PLAN, "-s", "random", *gate).code == 5
    other = bench(*PLAN, "-s", "bucketed,random", *gate, "--drafters", "2")
    assert other.code == 5 and "drafters 1 then, 2 now" in other.out
    (tmp_path / "gate" / "b.json").write_text('{"baseline": "dflash"}')
    broken = bench(*PLAN, *gate)
    assert broken.code == 2 and "not a baseline of dflash" in broken.err
    none = bench(*PLAN, "-s", "random", "--fail-on", "padding_efficiency:1%")
    assert none.code == 5 and "none was named" in none.out
    assert bench(*PLAN, "-s", "random", "--fail-on", "tok_s:1%").code == 2


def test_a_project_file_says_what_runs(bench, tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[tool.dflash-bench]\nstrategy = "random"\nbaseline = "none.json"\nfail-on = "fill:1%"\n'
    )
    assert "none.json: no such baseline" in bench().err
    assert "no such file" not in bench("--baseline", "other.json").err
    assert "other.json: no such baseline" in bench("--baseline", "other.json").err, (
        "the command line comes first"
    )
    (tmp_path / "pyproject.toml").write_text("[tool.dflash-bench]\nstrategies = 3\n")
    wrong = bench("-s", "random")
    assert wrong.code == 2 and "run has no option 'strategies'" in wrong.err


def test_a_promoted_baseline_says_what_changes(bench, tmp_path):
    for budget in ("4096", "8192"):
        assert bench(*PLAN, "-s", "random", "--token-budget", budget, "--json", f"{budget}.json").code == 0
    assert bench("baseline", "save", "main", "4096.json").code == 0
    twice = bench("baseline", "save", "main", "8192.json")
    assert twice.code == 2 and "promote" in twice.err
    promoted = bench("baseline", "promote", "main", "8192.json")
    assert promoted.code == 0 and "token_budget 4096 then, 8192 now" in promoted.out
    assert "stays as it was" in bench("baseline", "promote", "main", "8192.json").out
    assert json.loads(bench("baseline", "show", "main").out)["request"]["token_budget"] == 8192


@pytest.mark.parametrize("content", ["", "{}", '{"run_id": 3}', "[1]"])
def test_what_is_no_result_makes_no_baseline(bench, tmp_path, content):
    (tmp_path / "x.json").write_text(content)
    result = bench("baseline", "save", "main", "x.json")
    assert result.code == 2 and "neither a run nor plans" in result.err
    assert not store.paths(tmp_path / ".dflash-bench")
