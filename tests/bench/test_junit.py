from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import msgspec
import pytest
from run_records import a_run

from dflash.bench import junit
from dflash.bench.results import Run, Trial
from dflash.bench.verdict import Verdict
from dflash.errors import ExitCode, UsageError


def suite(run: Run, trials: list[Trial]) -> Element:
    """The suite as a CI server parses it; its counts must be those of its cases."""
    root = ElementTree.fromstring(junit.render(run, trials))
    assert root.tag == "testsuites"
    (found,) = root
    for kind, name in {"failure": "failures", "error": "errors", "skipped": "skipped"}.items():
        assert int(found.attrib[name]) == len(found.findall(f"testcase/{kind}")) == int(root.attrib[name])
    assert int(found.attrib["tests"]) == len(found.findall("testcase"))
    return found


def outcomes(run: Run, trials: list[Trial]) -> dict[str, str]:
    """What became of each test case."""
    found = {}
    for case in suite(run, trials).findall("testcase"):
        kinds = [kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None]
        assert len(kinds) <= 1
        found[case.attrib["name"]] = kinds[0] if kinds else "passed"
    return found


SPEEDS: dict[str, float | None] = {"random": 20_000.0, "bucketed": 18_000.0, "sorted": 22_000.0}


def test_a_case_for_each_arm_and_each_gate() -> None:
    run, trials = a_run(SPEEDS, pairs=10, fail_on=["tok_s:5%"])
    assert outcomes(run, trials) == {
        "random": "passed",
        "bucketed": "passed",
        "sorted": "passed",
        "bucketed against random, tok_s:5%": "failure",
        "sorted against random, tok_s:5%": "passed",
    }
    failure = suite(run, trials).find("testcase/failure")
    assert failure is not None
    assert failure.attrib["type"] == "REGRESSED"
    assert "tok_s 10.0 % lower" in failure.attrib["message"] and "10 pairs" in failure.attrib["message"]


def test_comparisons_without_a_gate_are_no_cases() -> None:
    assert outcomes(*a_run(SPEEDS)) == dict.fromkeys(SPEEDS, "passed")


def test_a_failed_arm_is_an_error_in_words_that_xml_can_hold() -> None:
    run, trials = a_run({"random": 20_000.0, "bucketed": None}, fail_on=["tok_s:5%"])
    assert outcomes(run, trials) == {
        "random": "passed",
        "bucketed": "error",
        "bucketed against random, tok_s:5%": "error",
    }
    error = suite(run, trials).find("testcase[@name='bucketed']/error")
    assert error is not None
    assert error.attrib["message"].endswith('sample 17 [red]in[/red] window 3 [31m | <b> & "x"')


@pytest.mark.parametrize(
    ("rules", "outcome"),
    [({}, "skipped"), ({"strict": True}, "failure"), ({"on_inconclusive": "fail"}, "failure")],
)
def test_a_gate_without_a_verdict_is_what_the_settings_make_of_it(rules: Any, outcome: str) -> None:
    run, trials = a_run(
        {"random": 20_000.0, "bucketed": 18_000.0}, pairs=1, fail_on=["tok_s:5%"], rules=rules
    )
    assert outcomes(run, trials)["bucketed against random, tok_s:5%"] == outcome
    assert (outcome == "failure") == (run.exit_code == ExitCode.INCONCLUSIVE)


@pytest.mark.parametrize("policy", ["pass", "fail"])
def test_a_gate_without_a_partner_is_loud_unless_it_may_pass(policy: str) -> None:
    run, trials = a_run(
        {"random": 20_000.0}, fail_on=["padding_efficiency:1%"], rules={"on_missing_baseline": policy}
    )
    found = outcomes(run, trials)["random against nothing, padding_efficiency:1%"]
    assert found == {"pass": "skipped", "fail": "error"}[policy]
    assert (found == "error") == (run.exit_code == ExitCode.NOTHING_MEASURED)


def test_a_gain_too_large_fails_where_strict_says_so() -> None:
    speeds = {"random": 20_000.0, "bucketed": 90_000.0}
    name = "bucketed against random, tok_s:5%"
    assert outcomes(*a_run(speeds, fail_on=["tok_s:5%"]))[name] == "passed"
    assert outcomes(*a_run(speeds, fail_on=["tok_s:5%"], rules={"strict": True}))[name] == "failure"


def test_nothing_measured_and_an_interrupt_are_errors_of_the_run() -> None:
    run, trials = a_run({"random": 20_000.0})
    assert outcomes(msgspec.structs.replace(run, exit_code=ExitCode.INTERRUPTED), trials)["run"] == "error"
    assert outcomes(run, [])["run"] == "error"
    assert "run" not in outcomes(run, trials)


def test_times_are_the_measured_windows_of_the_trials() -> None:
    run, trials = a_run({"random": 20_000.0, "bucketed": 18_000.0}, pairs=6)
    found = suite(run, trials)
    assert found.attrib["time"] == "15.000"  # 12 trials of 1.25 s
    times = {case.attrib["name"]: case.attrib["time"] for case in found.findall("testcase")}
    assert times == {"random": "7.500", "bucketed": "7.500"}


def test_the_run_is_in_the_properties() -> None:
    run, trials = a_run({"random": 20_000.0})
    properties = {p.attrib["name"]: p.attrib["value"] for p in suite(run, trials).iter("property")}
    assert properties["run_id"] == run.run_id
    assert (properties["verdict"], properties["exit_code"]) == ("OK", "0")


def test_the_file_is_written_and_a_place_that_cannot_hold_it_is_a_usage_error(tmp_path: Path) -> None:
    run, trials = a_run({"random": 20_000.0})
    junit.write(run, trials, tmp_path / "out.xml")
    assert (tmp_path / "out.xml").read_bytes() == junit.render(run, trials)
    with pytest.raises(UsageError, match="cannot write"):
        junit.write(run, trials, tmp_path / "no" / "out.xml")


def test_any_name_is_parsed_back_as_it_is() -> None:
    name = 'größer:a=<"&>|\u202f'
    run, trials = a_run({name: 20_000.0})
    assert list(outcomes(run, trials)) == [" ".join(name.split())]
    assert run.verdict == Verdict.OK
