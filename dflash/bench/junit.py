"""The run as JUnit XML, which every CI server shows: a test case for each arm and for each gate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from dflash.bench import findings
from dflash.bench.output import write as write_file
from dflash.bench.results import Comparison, Run, Trial
from dflash.bench.tables import clean
from dflash.bench.verdict import Verdict
from dflash.errors import ExitCode

_NAME = "dflash-bench"
_NOT_MET = (ExitCode.REGRESSION, ExitCode.INCONCLUSIVE)
_UNDECIDED = (None, Verdict.INCONCLUSIVE, Verdict.NO_BASELINE)


def write(run: Run, trials: Sequence[Trial], path: Path) -> None:
    """Write the file, or standard output if it is `-`; UsageError if it cannot be written."""
    write_file(path, render(run, trials))


def render(run: Run, trials: Sequence[Trial]) -> bytes:
    """As UTF-8 XML.

    A gate that was not met is a failure. One that could not be judged is an error or a failure, or skipped
    where the run's settings let it pass. A run that was interrupted or measured nothing is an error.
    """
    cases = [*_of_run(run, trials), *_of_arms(run, trials), *(_of_gate(gate, run) for gate in run.gates)]
    counts = {
        "name": _NAME,
        "tests": str(len(cases)),
        "failures": _count(cases, "failure"),
        "errors": _count(cases, "error"),
        "skipped": _count(cases, "skipped"),
        "time": f"{_seconds(trials):.3f}",
    }
    suites = Element("testsuites", counts)
    suite = SubElement(suites, "testsuite", counts)
    properties = SubElement(suite, "properties")
    for name, value in {
        "run_id": run.run_id,
        "verdict": str(run.verdict),
        "exit_code": str(int(run.exit_code)),
        "machine": findings.machine_line(run),
    }.items():
        SubElement(properties, "property", name=name, value=_text(value))
    suite.extend(cases)
    ElementTree.indent(suites)
    document: bytes = ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _of_run(run: Run, trials: Sequence[Trial]) -> Iterator[Element]:
    """Only where the run as a whole went wrong, which no arm and no gate would show."""
    if run.exit_code == ExitCode.INTERRUPTED:
        yield _with(_case("run", _NAME), "error", "interrupted: only the pairs that were finished count")
    elif not any(trial.ok for trial in trials):
        yield _with(_case("run", _NAME), "error", "nothing was measured")


def _of_arms(run: Run, trials: Sequence[Trial]) -> Iterator[Element]:
    for arm in run.arms:
        own = [trial for trial in trials if trial.arm == arm.strategy]
        case = _case(arm.strategy, f"{_NAME}.trials", _seconds(own))
        yield case if arm.error is None else _with(case, "error", arm.error)


def _of_gate(gate: Comparison, run: Run) -> Element:
    case = _case(findings.title(gate), f"{_NAME}.gates")
    code, reason = findings.gate_code(gate, run), findings.reason(gate)
    if code in _NOT_MET:
        return _with(case, "failure", reason, gate.verdict)
    if code != ExitCode.OK:
        return _with(case, "error", reason, gate.verdict)
    if gate.verdict in _UNDECIDED:
        return _with(case, "skipped", reason)
    SubElement(case, "system-out").text = _text(reason)
    return case


def _case(name: str, where: str, seconds: float = 0.0) -> Element:
    return Element("testcase", name=_text(name), classname=where, time=f"{seconds:.3f}")


def _with(case: Element, kind: str, reason: str, verdict: Verdict | None = None) -> Element:
    outcome = SubElement(case, kind, message=_text(reason))
    if verdict is not None:
        outcome.set("type", verdict)
    return case


def _count(cases: Iterable[Element], kind: str) -> str:
    return str(sum(case.find(kind) is not None for case in cases))


def _seconds(trials: Iterable[Trial]) -> float:
    return math.fsum(trial.metrics.get("wall_seconds") or 0.0 for trial in trials)


def _text(foreign: str) -> str:
    """Without the characters that XML has no way to write."""
    return clean(foreign).plain
