"""A whole learning run in processes of its own."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from dflash.bench.learning.report import show
from dflash.bench.learning.results import LearningReport
from dflash.bench.learning.run import LearningRequest, learning_run
from dflash.bench.metrics import LEARNING_METRICS
from dflash.bench.verdict import Verdict
from dflash.errors import ExitCode, UsageError
from dflash.plugin_manager import PluginManager


def request(config, names, **given):
    return LearningRequest(PluginManager().arms(names), config, tokens=4_000, pool_tokens=4_000, **given)


def test_a_run_compares_its_arms_and_says_what_is_missing(small_config):
    ended = []
    report = learning_run(
        request(small_config, "random,sorted", seeds=2), lambda asked, answer: ended.append(asked.strategy)
    )
    assert sorted(ended) == ["random", "random", "sorted", "sorted"]
    assert (report.exit_code, report.reference, report.seeds) == (ExitCode.OK, "random", [0, 1])
    random, sorted_ = report.arms
    for arm in report.arms:
        assert arm.metrics["design_effect"] > 0
        assert arm.intervals["design_effect"][0] < arm.metrics["design_effect"]
        assert len(arm.by_seed["final_loss"]) == 2
        assert arm.metrics.keys() <= LEARNING_METRICS.keys()
    assert "loss_spikes" not in sorted_.metrics, "two seeds cannot say"
    assert any("judged from 6 on" in note for note in report.notes)
    assert random.real_tokens == sorted_.real_tokens
    assert sorted_.speed > 1
    assert sorted_.short_weight != pytest.approx(1, abs=0.02)
    assert msgspec.json.decode(report.to_json(), type=LearningReport) == report
    text = io.StringIO()
    show(report, Console(file=text, width=80))
    assert sorted_.line.split(":")[0] in text.getvalue()
    assert max(map(len, text.getvalue().splitlines())) <= 80
    assert "\u2026" not in text.getvalue(), "nothing is cut off"
    named = [line.split()[0] for line in text.getvalue().splitlines() if line.split()]
    assert min(named.count("sorted"), named.count("random")) >= 5, "in each table"


def test_a_run_in_which_nothing_works_says_why(small_config):
    data = msgspec.structs.replace(small_config.data, held_out_samples=0)
    broken = msgspec.structs.replace(small_config, data=data)
    report = learning_run(request(broken, "random,sorted", seeds=1), lambda *_: None)
    assert report.exit_code == ExitCode.TRIAL_FAILED
    for arm in report.arms:
        assert arm.verdict == Verdict.ERROR and "holds out no sample" in (arm.error or "")
    text = io.StringIO()
    show(report, Console(file=text, width=80))
    assert " ".join(text.getvalue().split()).count("holds out no sample") == 2


def test_a_reference_that_is_no_arm_is_refused(small_config):
    with pytest.raises(UsageError, match="--reference 'packed' is none of the strategies: random"):
        learning_run(request(small_config, "random", reference="packed"), lambda *_: None)


def test_error_arms_have_a_verdict():
    from dflash.bench.learning.analysis import compare

    (arm,) = compare(["random"], "random", {}, {"random": "seed 0: boom"}, {}, False, 0.98)
    assert (arm.verdict, arm.line) == (Verdict.ERROR, "random: seed 0: boom")
