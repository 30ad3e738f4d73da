"""The field of a run: who meets whom, and how each arm's trials are run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dflash.bench import comparisons, results, revision, store
from dflash.bench.exchange import TrialRequest
from dflash.bench.exec_launcher import ExecLauncher
from dflash.bench.gates import Rules
from dflash.bench.launcher import Launcher
from dflash.bench.learning.gates import AGAINST_RANDOM
from dflash.bench.loop import Looks, Task
from dflash.bench.pairs import Duel
from dflash.config import Config
from dflash.data.sources import target_folder
from dflash.errors import NoBaselineError, UsageError
from dflash.models.shape import read_json
from dflash.plugin_manager import Arm

WARMUP_WINDOWS = 2
ROUNDS = 10


@dataclass(frozen=True)
class RunRequest:
    """What a run is asked for.

    The partner of every arm is ``against``, the same strategy at that revision, or else the arm called
    ``reference``, the first one if None. ``rounds`` is the number of pairs; None lets gates on clocks decide
    when they have seen enough, and is ROUNDS without any. ``max_time`` is in seconds: no pair begins after
    it. ``learning_seeds`` is the number of learning trials of each arm, which follow the timed ones.
    ``inject`` maps an arm to a loss that is put into it on purpose. An arm's name up to an `@` is what its
    trials are asked for, so one strategy may meet itself. Nothing is stored where ``directory`` is None.
    """

    arms: Sequence[Arm]
    config: Config
    windows: int
    rounds: int | None = None
    reference: str | None = None
    against: str | None = None
    baseline: str | None = None
    rules: Rules = Rules()  # noqa: RUF009  (frozen)
    max_time: float | None = None
    learning_seeds: int = 0
    inject: Mapping[str, str] = field(default_factory=dict)
    blocked: tuple[str, ...] = ()
    directory: Path | None = store.DIRECTORY
    command_line: Sequence[str] = ()

    @property
    def looks(self) -> Looks:
        """When the gates are judged."""
        if self.rounds is None and any(gate.metric.gate_rule == "paired" for gate in self.rules.gates):
            return Looks.sequential()
        return Looks.fixed(self.rounds or ROUNDS)


@dataclass(frozen=True)
class Field:
    """Who meets whom, and how each arm's trials are run."""

    duels: list[Duel]
    tasks: dict[str, Task]
    arms: list[results.Arm]
    against: results.Revision | None = None
    without_partner: Mapping[str, str] = field(default_factory=dict)
    """arms that have none, and why"""


@contextmanager
def open_field(request: RunRequest, config: Config) -> Iterator[Field]:
    """The field that a request describes, with its launchers and, for another revision, its worktree.

    Raises UsageError for a reference that does not run, and for a revision that cannot be measured.
    """
    with ExitStack() as stack:
        if request.against is not None:
            yield _against(request, config, stack, request.against)
            return
        names = [arm.name for arm in request.arms]
        reference = request.reference or names[0]
        if reference not in names:
            raise UsageError(
                f"--reference {reference!r} is none of the strategies of this run: {', '.join(names)}"
            )
        launcher = stack.enter_context(Launcher(_model_type(config)))
        duels = [
            Duel(reference, name, same_strategy=_plain(name) == _plain(reference))
            for name in names
            if name != reference
        ]
        yield Field(
            duels=duels or [Duel(None, reference)],
            tasks={name: Task(_trial_request(request, config, name), launcher) for name in names},
            arms=[_arm(arm, request) for arm in request.arms],
        )


def _against(request: RunRequest, config: Config, stack: ExitStack, name: str) -> Field:
    packages = {"dflash", *(type(arm.strategy).__module__.partition(".")[0] for arm in request.arms)}
    now, then = stack.enter_context(revision.checkouts(name, sorted(packages)))
    new, old = (stack.enter_context(ExecLauncher(checkout)) for checkout in (now, then))
    found = old.plugins([arm.name for arm in request.arms], request.blocked)
    duels, tasks, arms, missing = [], {}, [], {}
    for arm in request.arms:
        task = _trial_request(request, config, arm.name)
        tasks[arm.name] = Task(task, new)
        plugin = found[arm.name]
        if isinstance(plugin, str):
            missing[arm.name] = f"{name} does not have it ({plugin})"
            duels.append(Duel(None, arm.name))
        else:
            partner = f"{arm.name}@{name}"
            tasks[partner] = Task(task, old)
            duels.append(Duel(partner, arm.name, same_strategy=True))
            arms.append(
                results.Arm(
                    strategy=partner, options=arm.options, plugin=plugin, revision=then.revision.commit
                )
            )
        arms.append(_arm(arm, request))
    return Field(duels, tasks, arms, then.revision, missing)


def _trial_request(request: RunRequest, config: Config, name: str) -> TrialRequest:
    return TrialRequest(
        strategy=_plain(name),
        config=config,
        warmup=WARMUP_WINDOWS,
        windows=request.windows,
        blocked=request.blocked,
        inject=request.inject.get(name),
    )


def _plain(name: str) -> str:
    return name.partition("@")[0]


def _arm(arm: Arm, request: RunRequest) -> results.Arm:
    return results.Arm(
        strategy=arm.name,
        options=arm.options,
        plugin=results.Plugin.of(arm.record),
        inject=request.inject.get(arm.name),
    )


def refuse_without_partner(request: RunRequest, field_: Field) -> None:
    """Trials take minutes: a gate that they cannot answer is said before.

    Raises:
        UsageError: a gate on learning, in a run without learning trials.
        NoBaselineError: a gate that would be compared with nothing, where that must fail.
    """
    for gate in request.rules.gates:
        if gate.metric.gate_rule == "learning" and not request.learning_seeds:
            raise UsageError(f"--fail-on {gate.text}: only learning trials measure it; add --learning")
    if request.rules.on_missing_baseline == "pass":
        return
    gates = [gate for gate in request.rules.gates if gate.metric.name not in AGAINST_RANDOM]
    candidates = [duel.candidate for duel in field_.duels]
    for gate in gates:
        if request.baseline is None and not any(map(gate.binds, candidates)):
            raise NoBaselineError(
                f"--fail-on {gate.text}: {gate.strategy} is compared with nothing in this run; compared are "
                f"{', '.join(candidates)}"
            )
    alone = [duel.candidate for duel in field_.duels if duel.reference is None]
    for name in alone:
        for gate in gates:
            stored = request.baseline is not None and gate.metric.gate_rule == "exact"
            if gate.binds(name) and not stored:
                why = comparisons.no_partner(name, gate.metric, field_.without_partner.get(name))
                raise NoBaselineError(f"--fail-on {gate.text}: {why}")


def _model_type(config: Config) -> str:
    return str(read_json(target_folder(config.data) / "config.json").get("model_type", "auto"))
