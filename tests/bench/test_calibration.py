from __future__ import annotations

import json
import re
import signal
import subprocess

import pytest
from commands import command, environment

from dflash.bench.calibration import Calibration, calibrate, calibrate_simulated
from dflash.bench.gates import Rules, parse_gate
from dflash.bench.loop import NoProgress
from dflash.bench.noise import MODELS
from dflash.bench.run import RunRequest
from dflash.errors import ExitCode
from dflash.plugin_manager import PluginManager

GATE = parse_gate("tok_s:5%")


def simulated(repeats: int, inject: str | None, *models: str, gate: str = "tok_s:5%") -> Calibration:
    return calibrate_simulated(models or tuple(MODELS), parse_gate(gate), repeats, inject, Rules())


def test_ten_thousand_runs_without_a_difference_fail_in_two_percent_at_the_most() -> None:
    found = simulated(10_000, None, "noisy")
    (rate,) = found.rates
    assert (rate.repeats, sum(rate.verdicts.values())) == (10_000, 10_000)
    assert rate.at_most <= 0.02
    assert rate.verdicts.get("INCONCLUSIVE", 0) <= 500
    assert 10 <= rate.pairs <= 14
    assert found.summary == (
        f"false alarms {rate.regressed}/10000 (at most {100 * rate.at_most:.1f}% at 95%)"
    )


def test_a_slow_down_of_five_percent_is_caught_in_ninety_percent_within_twenty_pairs() -> None:
    found = simulated(10_000, "tok_s:5%", "noisy")
    (rate,) = found.rates
    assert rate.at_least >= 0.9
    assert found.summary == f"caught {rate.regressed}/10000 (at least {100 * rate.at_least:.1f}% at 95%)"


def test_quiet_and_disturbed_machines_keep_the_rates_too() -> None:
    quiet, disturbed = simulated(2000, None, "quiet", "disturbed").rates
    assert quiet.at_most <= 0.005
    assert disturbed.at_most <= 0.02
    quiet, disturbed = simulated(2000, "tok_s:5%", "quiet", "disturbed").rates
    assert quiet.at_least >= 0.99
    assert disturbed.regressed / disturbed.repeats >= 0.8
    (double,) = simulated(1000, "tok_s:10%", "disturbed").rates
    assert double.at_least >= 0.98


def test_trials_without_memory_have_the_rate_that_the_looks_were_given() -> None:
    """Independent noise uses up the 2 % that three looks at 99 % spend, where what pairs share does not."""
    (false,) = simulated(10_000, None, "unsteady").rates
    assert false.at_least <= 0.02 and false.regressed <= 250
    (double,) = simulated(2000, "tok_s:10%", "unsteady").rates
    assert double.at_least >= 0.99


def test_a_cost_is_calibrated_from_its_own_side() -> None:
    """window_seconds rises where tok_s falls: a loss of its own is 5 % more seconds, a little less time."""
    (rate,) = simulated(500, None, "quiet", gate="window_seconds:5%").rates
    assert rate.regressed == 0


def test_equal_seeds_give_equal_rates() -> None:
    assert simulated(200, None) == simulated(200, None)


@pytest.fixture
def request_(small_config):
    return RunRequest(arms=PluginManager().arms("random"), config=small_config, windows=2, rules=Rules())


def test_a_loss_of_padding_efficiency_is_caught_by_real_trials(request_) -> None:
    """Exact: one pair decides, and no clock has a say."""
    gate, told = parse_gate("padding_efficiency:0.1%"), []
    found = calibrate(request_, gate, 1, "padding_efficiency:1%", NoProgress(), told.append)
    (rate,) = found.rates
    assert (rate.repeats, rate.regressed, found.exit_code) == (1, 1, ExitCode.OK)
    assert rate.runs == told
    assert told[0].reason.startswith("padding_efficiency ") and told[0].reason.endswith(": worse")
    assert told[0].estimate <= 0.99


def test_a_failed_run_is_no_verdict(request_) -> None:
    gate = parse_gate("padding_efficiency:0.1%")
    found = calibrate(request_, gate, 1, "padding_efficiency:99%", NoProgress(), pytest.fail)
    assert found.rates[0].repeats == 0
    assert found.summary == "caught 0/0 (at least 0.0% at 95%)"
    assert "the budget leaves room for" in found.failures[0]
    assert found.exit_code is ExitCode.TRIAL_FAILED


def test_an_interrupt_keeps_the_finished_runs(request_) -> None:
    class Interrupts(NoProgress):
        trials = 0

        def started(self, slot) -> None:
            self.trials += 1
            if self.trials > 2:
                raise KeyboardInterrupt

    gate = parse_gate("padding_efficiency:0.1%")
    found = calibrate(request_, gate, 5, None, Interrupts(), lambda run: None)
    assert (found.rates[0].verdicts, found.exit_code) == ({"OK": 1}, ExitCode.INTERRUPTED)
    assert found.summary == "false alarms 0/1 (at most 95.0% at 95%)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["power"], "--inject"),
        (["power", "--inject", "tok_s:abc"], "'abc' is no percentage"),
        (["aa", "--repeats", "0"], "--repeats"),
        (["aa", "--repeats", "2", "--simulated", "2"], "contradict each other"),
        (["aa", "--strategy", "random,sorted"], "one strategy meets itself, not 2"),
        (["aa", "--simulated", "5", "--fail-on", "padding_efficiency:1%"], "--simulated draws times"),
        (["aa", "--fail-on", "speed:1%"], "unknown metric 'speed'"),
    ],
)
def test_wrong_usage(bench, arguments: list[str], message: str) -> None:
    result = bench(*arguments)
    assert result.code == 2
    assert message in result.err


def test_the_last_line_and_nothing_but_json(bench) -> None:
    result = bench("aa", "--simulated", "300")
    assert result.code == 0
    last = result.out.splitlines()[-1]
    assert re.fullmatch(r"false alarms \d+/300 \(at most \d+\.\d% at 95%\)", last)
    assert [name in result.out for name in MODELS] == [True] * len(MODELS)
    told = bench("power", "--inject", "tok_s:5%", "--simulated", "300", "--json", "-")
    rates = json.loads(told.out)["rates"]
    assert [rate["source"] for rate in rates] == ["quiet", "disturbed", "unsteady", "noisy"]
    assert all(sum(rate["verdicts"].values()) == 300 for rate in rates)


def test_ctrl_c_ends_with_what_was_finished(small_file, tmp_path) -> None:
    asked = [
        "--repeats",
        "50",
        "--fail-on",
        "padding_efficiency:0.1%",
        "--config",
        small_file,
        "--windows",
        "1",
    ]
    process = subprocess.Popen(
        command("dflash-bench", "aa", *asked),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    first = next(line for line in process.stderr if line.startswith("run "))
    assert first.startswith("run 1/50  OK  padding_efficiency ")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    counted = re.fullmatch(r"false alarms 0/(\d+) \(at most \d+\.\d% at 95%\)", out.splitlines()[-1])
    assert counted and 1 <= int(counted[1]) < 50
    assert not (tmp_path / ".dflash-bench").exists()
