"""The trials of a run, pair by pair: looks, repeats of disturbed pairs, a limit of time, interrupts."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dflash.bench import pairs, sequential, statistics
from dflash.bench.comparisons import compare, questions
from dflash.bench.exchange import Failure, Measurement, TrialRequest
from dflash.bench.gates import Rules
from dflash.bench.pairs import Duel, Slot
from dflash.bench.results import Comparison, InvalidPair, Trial
from dflash.bench.verdict import Verdict
from dflash.errors import TrialError

_UNDECIDED = (None, Verdict.INCONCLUSIVE)


class Progress(Protocol):
    """Who is told how a run goes on."""

    def started(self, slot: Slot) -> None:
        """A trial begins."""

    def ended(self, trial: Trial) -> None:
        """It has ended, one way or the other."""

    def looked(self, pairs: int, next_look: int | None, reason: str) -> None:
        """After ``pairs`` pairs of each duel the gates were judged, or the rest was planned."""


class NoProgress:
    """Nobody is told."""

    def started(self, slot: Slot) -> None:
        """Says nothing."""

    def ended(self, trial: Trial) -> None:
        """Says nothing."""

    def looked(self, pairs: int, next_look: int | None, reason: str) -> None:
        """Says nothing."""


class TrialRunner(Protocol):
    """A launcher, as the loop needs it."""

    def run(self, request: TrialRequest) -> Measurement | Failure:
        """Run one trial to its end; KeyboardInterrupt ends it and is passed on."""
        ...


@dataclass(frozen=True)
class Task:
    """What an arm's trial is told, and who runs it."""

    request: TrialRequest
    runner: TrialRunner


@dataclass(frozen=True)
class Looks:
    """At how many pairs the gates are judged, and the level of each bound there."""

    at: tuple[int, ...]
    level: float

    @classmethod
    def fixed(cls, rounds: int) -> Looks:
        """One look, at the end."""
        return cls((rounds,), statistics.LEVEL)

    @classmethod
    def sequential(cls) -> Looks:
        """Three, of which the first that decides every gate is the last."""
        return cls(sequential.LOOKS, sequential.LEVEL)


@dataclass
class Measured:
    """What a run's trials gave. ``interrupted`` and ``out_of_time`` say why there are fewer than planned."""

    trials: list[Trial] = field(default_factory=list)
    measurements: dict[str, Measurement] = field(default_factory=dict)
    """an arm's first"""
    tracebacks: list[str] = field(default_factory=list)
    reasons: dict[Duel, list[tuple[int, str | None]]] = field(default_factory=dict)
    """each whole pair of a duel, by its number in the run, and why it is invalid"""
    looks: list[int] = field(default_factory=list)
    interrupted: bool = False
    out_of_time: bool = False

    @property
    def invalid(self) -> list[InvalidPair]:
        """The pairs that are left out; see pairs.left_out."""
        found = []
        for named in self.reasons.values():
            for at in pairs.left_out([reason for _, reason in named]):
                pair, reason = named[at]
                found.append(InvalidPair(pair=pair, reason=str(reason)))
        return sorted(found, key=lambda invalid: invalid.pair)

    def kept(self, duel: Duel) -> int:
        """Pairs of a duel that count."""
        named = self.reasons.get(duel, [])
        return len(named) - len(pairs.left_out([reason for _, reason in named]))


@dataclass(frozen=True)
class Job:
    """All that the loop is given. ``deadline`` is a reading of time.monotonic; no pair begins after it."""

    tasks: Mapping[str, Task]
    duels: Sequence[Duel]
    rules: Rules
    looks: Looks
    seed: int
    deadline: float | None = None


def measure(job: Job, progress: Progress) -> Measured:
    """Run pairs of every duel up to each look in turn, until the gates are decided.

    An arm whose trial fails gets no further ones, and its partner goes on alone. Ctrl-C ends the trial at
    hand: what is returned then holds the pairs that were finished.
    """
    return _Loop(job, progress).run()


def judged(job: Job, measured: Measured, *, last_look: bool) -> list[Comparison]:
    """Every clock of every duel, as the pairs so far have it."""
    invalid = {one.pair for one in measured.invalid}
    return compare(
        measured.trials,
        job.duels,
        job.rules,
        level=job.looks.level,
        last_look=last_look,
        invalid=invalid,
    )


class _Loop:
    def __init__(self, job: Job, progress: Progress) -> None:
        self._job, self._progress = job, progress
        self._measured = Measured()
        self._alive = list(job.duels)
        self._pairs_of: dict[Duel, int] = {}
        self._next_pair = 0
        self._candidate_first = bool(secrets.randbits(1))
        self._planned = len(job.looks.at) == 1

    def run(self) -> Measured:
        try:
            for look in self._job.looks.at:
                self._go_to(look)
                if self._decided(look):
                    break
        except KeyboardInterrupt:
            self._measured.interrupted = True
        return self._measured

    def _go_to(self, look: int) -> None:
        while behind := [duel for duel in self._alive if self._measured.kept(duel) < look]:
            for duel in behind:
                if self._late():
                    self._measured.out_of_time = True
                    return
                if duel in self._alive:
                    self._pair(duel)
            if not self._planned and self._fewest() >= sequential.PILOT:
                self._planned = True
                self._forecast()

    def _late(self) -> bool:
        deadline = self._job.deadline
        return deadline is not None and time.monotonic() >= deadline and bool(self._measured.trials)

    def _fewest(self) -> int:
        return min((self._measured.kept(duel) for duel in self._alive), default=0)

    def _pair(self, duel: Duel) -> None:
        number = self._pairs_of.get(duel, 0)
        self._pairs_of[duel] = number + 1
        done: list[Trial] = []
        try:
            for slot in pairs.slots(duel, number, self._next_pair, candidate_first=self._candidate_first):
                self._progress.started(slot)
                done.append(self._trial(slot))
                self._progress.ended(done[-1])
        except KeyboardInterrupt:
            self._measured.trials += [trial for trial in done if not trial.ok]
            raise
        self._measured.trials += done
        self._next_pair += 1
        for trial in done:
            if not trial.ok:
                self._bury(trial.arm)
        if all(trial.ok for trial in done):
            reason = pairs.invalid(done[0], done[-1])
            self._measured.reasons.setdefault(duel, []).append((done[0].pair, reason))

    def _trial(self, slot: Slot) -> Trial:
        task = self._job.tasks[slot.arm]
        answer = task.runner.run(task.request)
        place = {"pair": slot.pair, "slot": slot.slot, "arm": slot.arm, "seed": self._job.seed}
        if isinstance(answer, Failure):
            self._measured.tracebacks.append(answer.traceback)
            return Trial(**place, status="failed", error=answer.message)  # type: ignore[arg-type]
        self._measured.measurements.setdefault(slot.arm, answer)
        same = {name: getattr(answer, name) for name in Trial.__struct_fields__ if hasattr(answer, name)}
        try:
            return Trial(**place, status="ok", **same)  # type: ignore[arg-type]
        except TrialError as error:
            return Trial(**place, status="failed", error=str(error))  # type: ignore[arg-type]

    def _bury(self, arm: str) -> None:
        """Ends an arm's duels. A partner that has no other goes on alone: its figures are wanted."""
        ended = [duel for duel in self._alive if arm in (duel.reference, duel.candidate)]
        self._alive = [duel for duel in self._alive if duel not in ended]
        for duel in ended:
            partner = duel.candidate if arm == duel.reference else duel.reference
            busy = {name for other in self._alive for name in (other.reference, other.candidate)}
            if partner is not None and partner != arm and partner not in busy:
                self._alive.append(Duel(None, partner))

    def _decided(self, look: int) -> bool:
        """Whether every gate on a clock has its verdict."""
        self._measured.looks.append(self._fewest())
        following = None if self._measured.out_of_time else sequential.next_look(look, self._job.looks.at)
        found = judged(self._job, self._measured, last_look=following is None)
        open_ = [one for one in found if one.gate is not None and one.verdict in _UNDECIDED]
        if following is None or not open_:
            return True
        self._progress.looked(look, following, "; ".join(f"{one.strategy}: {one.reason}" for one in open_))
        return False

    def _forecast(self) -> None:
        """After the pilot: what so many pairs will be able to show, for every gate on a clock."""
        asked = questions(self._measured.trials, self._alive, self._job.rules, self._left_out())
        plans = {
            question.name: sequential.forecast(
                question.metric,
                statistics.log_ratios(question.reference, question.candidate),
                question.tolerance,
                question.floor,
            )
            for question in asked
            if question.gated
        }
        lines = [f"{name.rpartition('.')[0]}: {plan.reason}" for name, plan in plans.items() if plan]
        if lines:
            self._progress.looked(self._fewest(), self._job.looks.at[0], "; ".join(lines))

    def _left_out(self) -> set[int]:
        return {one.pair for one in self._measured.invalid}
