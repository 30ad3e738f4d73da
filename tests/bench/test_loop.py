"""The loop over pairs, with a machine whose clock is known: what it decides, repeats, and leaves out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from dflash.bench.exchange import Failure, Measurement, TrialRequest
from dflash.bench.gates import Rules, parse_gates
from dflash.bench.loop import Job, Looks, Measured, NoProgress, Task, judged, measure
from dflash.bench.pairs import Duel
from dflash.config import Config


@dataclass
class Machine:
    """Gives the trials of an arm the speed that ``speed`` says of its name and of the trial's number."""

    speed: Callable[[str, int], float | BaseException]
    steal: Callable[[int], float] = lambda trial: 0.0
    ran: list[str] = field(default_factory=list)

    def run(self, request: TrialRequest) -> Measurement | Failure:
        number = len(self.ran)
        self.ran.append(request.strategy)
        speed = self.speed(request.strategy, number)
        if isinstance(speed, KeyboardInterrupt):
            raise speed
        if isinstance(speed, BaseException):
            return Failure(str(speed), "a traceback")
        return Measurement(
            metrics={"tok_s": speed, "padding_efficiency": 0.5},
            losses=[1.0],
            plan_digest="d",
            windows_per_epoch=3,
            stages={},
            bottleneck="target",
            steal_seconds=0.0,
            load=0.0,
            steal_share=self.steal(number),
        )


@dataclass
class Seen(NoProgress):
    lines: list[tuple[int, int | None, str]] = field(default_factory=list)

    def looked(self, pairs: int, next_look: int | None, reason: str) -> None:
        self.lines.append((pairs, next_look, reason))


def job(machine: Machine, *gates: str, duels: list[Duel] | None = None, **others: Any) -> Job:
    duels = duels or [Duel("a", "b")]
    arms = {arm for duel in duels for arm in (duel.reference, duel.candidate) if arm is not None}
    return Job(
        tasks={arm: Task(TrialRequest(arm, Config(), 2, 4), machine) for arm in arms},
        duels=duels,
        rules=Rules(gates=parse_gates(gates)),
        looks=others.pop("looks", Looks.sequential() if gates else Looks.fixed(10)),
        seed=0,
        **others,
    )


def verdicts(job: Job, measured: Measured) -> list[str | None]:
    return [one.verdict for one in judged(job, measured, last_look=True) if one.gate is not None]


def noisy(ratio: float, sigma: float) -> Callable[[str, int], float]:
    noise = np.random.default_rng(1).normal(0, sigma, 1000)
    return lambda arm, number: (ratio if arm == "b" else 1.0) * 1000 * float(np.exp(noise[number]))


@pytest.mark.parametrize(("ratio", "verdict"), [(0.9, "REGRESSED"), (1.0, "OK"), (1.1, "IMPROVED")])
def test_a_quiet_machine_decides_at_the_first_look(ratio: float, verdict: str) -> None:
    machine = Machine(noisy(ratio, 0.005))
    task = job(machine, "tok_s:5%")
    measured = measure(task, NoProgress())
    assert (measured.looks, len(machine.ran)) == ([10], 20)
    assert verdicts(task, measured) == [verdict]


def test_a_noisy_machine_is_looked_at_three_times_and_says_what_it_can_show() -> None:
    machine, seen = Machine(noisy(1.0, 0.3)), Seen()
    task = job(machine, "tok_s:5%")
    measured = measure(task, seen)
    assert (measured.looks, len(machine.ran), measured.out_of_time) == ([10, 15, 20], 40, False)
    assert verdicts(task, measured) == ["INCONCLUSIVE"]
    assert [(pairs, following) for pairs, following, _ in seen.lines] == [(8, 10), (10, 15), (15, 20)]
    assert "5 % of tok_s cannot be resolved here" in seen.lines[0][2], "after the pilot"


def test_pairs_are_adjacent_and_turn_over() -> None:
    machine = Machine(noisy(1.0, 0.0))
    measured = measure(job(machine, looks=Looks.fixed(6)), NoProgress())
    pairs = list(zip(machine.ran[::2], machine.ran[1::2], strict=True))
    assert pairs == [pairs[0], pairs[0][::-1]] * 3 and set(pairs[0]) == {"a", "b"}
    assert [(trial.pair, trial.slot) for trial in measured.trials] == [
        (p, s) for p in range(6) for s in (0, 1)
    ]


def test_without_a_gate_on_a_clock_nothing_ends_early() -> None:
    machine = Machine(noisy(0.5, 0.0))
    measured = measure(job(machine, "padding_efficiency:1%", looks=Looks.fixed(4)), NoProgress())
    assert (len(machine.ran), measured.looks) == (8, [4])


def test_a_disturbed_pair_is_repeated_and_counts_in_nothing() -> None:
    """Trial 7 was robbed, and slow: pair 3 is left out and an eleventh pair run."""
    machine = Machine(lambda arm, number: 10.0 if number == 7 else 1000.0, lambda trial: 0.5 * (trial == 7))
    task = job(machine, "tok_s:5%")
    measured = measure(task, NoProgress())
    assert len(machine.ran) == 22
    assert [(one.pair, "stolen" in one.reason) for one in measured.invalid] == [(3, True)]
    assert verdicts(task, measured) == ["OK"]
    assert len(measured.trials) == 22, "it is stored all the same"


def test_where_disturbance_is_the_rule_no_pair_is_left_out() -> None:
    machine = Machine(noisy(1.0, 0.001), lambda trial: 0.2 * (trial % 4 == 0))
    measured = measure(job(machine, "tok_s:5%"), NoProgress())
    assert measured.invalid == []
    assert measured.kept(Duel("a", "b")) == measured.looks[0] and 10 <= measured.looks[0] <= 13


def test_when_time_is_over_the_pair_at_hand_is_finished() -> None:
    machine = Machine(noisy(0.9, 0.001))
    measured = measure(job(machine, "tok_s:5%", deadline=0.0), NoProgress())
    assert (machine.ran.count("a"), machine.ran.count("b"), measured.out_of_time) == (1, 1, True)
    assert (len(measured.trials), measured.looks) == (2, [1])


def test_an_arm_that_fails_is_not_tried_again_and_its_partner_goes_on() -> None:
    machine = Machine(lambda arm, number: ValueError("boom") if arm == "b" else 1000.0)
    task = job(machine, "tok_s:5%")
    measured = measure(task, NoProgress())
    assert machine.ran.count("b") == 1 and machine.ran.count("a") >= 10
    assert [trial.error for trial in measured.trials if not trial.ok] == ["boom"]
    assert measured.tracebacks == ["a traceback"]
    assert verdicts(task, measured) == ["ERROR"]


def test_a_candidate_that_fails_leaves_the_others_their_pairs() -> None:
    machine = Machine(lambda arm, number: ValueError("boom") if arm == "c" else 1000.0 + number)
    task = job(machine, "tok_s:5%", duels=[Duel("a", "b"), Duel("a", "c")])
    measured = measure(task, NoProgress())
    assert (machine.ran.count("b"), machine.ran.count("c")) == (10, 1)
    assert verdicts(task, measured) == ["OK", "ERROR"]


def test_one_arm_alone_has_one_trial_a_round() -> None:
    machine = Machine(noisy(1.0, 0.0))
    measure(job(machine, duels=[Duel(None, "a")], looks=Looks.fixed(3)), NoProgress())
    assert machine.ran == ["a"] * 3


@pytest.mark.parametrize("at", range(6))
def test_an_interrupt_leaves_whole_pairs(at: int) -> None:
    machine = Machine(lambda arm, number: KeyboardInterrupt() if number == at else 1000.0)
    measured = measure(job(machine), NoProgress())
    assert measured.interrupted
    assert [trial.pair for trial in measured.trials] == [pair for pair in range(at // 2) for _ in range(2)]


def test_a_measurement_that_means_nothing_is_a_failed_trial() -> None:
    machine = Machine(lambda arm, number: float("nan") if arm == "b" else 1000.0)
    measured = measure(job(machine), NoProgress())
    (failed,) = [trial for trial in measured.trials if not trial.ok]
    assert failed.arm == "b" and "a figure is nan" in str(failed.error)
