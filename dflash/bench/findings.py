"""What a run says, in plain text: the cells and lines that the terminal, Markdown and JUnit all show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dflash.bench.machine import class_key
from dflash.bench.metrics import ABSENT, number, percent
from dflash.bench.results import Arm, Comparison, Run, Trial
from dflash.bench.statistics import least_pairs
from dflash.bench.verdict import Outcome, Verdict, exit_code
from dflash.errors import ExitCode

SPEED = "tok_s"

# Of several gates an arm shows the one that decides for it: by the precedence of exit codes.
_WORST_FIRST = (
    Verdict.ERROR,
    Verdict.REGRESSED,
    Verdict.NO_BASELINE,
    Verdict.INCONCLUSIVE,
    None,
    Verdict.OK,
    Verdict.IMPROVED,
)


@dataclass(frozen=True)
class Row:
    """An arm's line in the table; an absent interval is an empty string."""

    arm: Arm
    tok_s: str
    tok_s_interval: str
    ratio: str
    ratio_interval: str
    padding_efficiency: str
    final_loss: str
    gradient_diversity: str
    verdict: Verdict | None
    verdict_text: str


def rows(run: Run) -> list[Row]:
    """One for each arm, in the order in which they were asked for."""
    return [_row(run, arm) for arm in run.arms]


def _row(run: Run, arm: Arm) -> Row:
    speed = next(
        (c for c in run.comparisons if c.strategy == arm.strategy and c.metric == SPEED and not c.advisory),
        None,
    )
    is_reference = speed is None and (
        arm.strategy == run.reference or any(c.reference == arm.strategy for c in run.comparisons)
    )
    interval = arm.intervals.get(SPEED)
    ratio, bounds = _ratio(speed)
    verdict = verdict_of(run, arm)
    text = "reference" if is_reference and verdict is None else verdict or ABSENT
    return Row(
        arm=arm,
        tok_s=_figure(arm, SPEED),
        tok_s_interval=f"[{number(interval[0])}, {number(interval[1])}]" if interval else "",
        ratio="1" if is_reference else ratio,
        ratio_interval=bounds,
        padding_efficiency=_share(arm, "padding_efficiency"),
        final_loss=_figure(arm, "final_loss", 4),
        gradient_diversity=_figure(arm, "gradient_diversity", 3),
        verdict=verdict,
        verdict_text=str(text),
    )


def verdict_of(run: Run, arm: Arm) -> Verdict | None:
    """ERROR if it failed; else of its gates the one that decides; without gates that of its speed."""
    if arm.error is not None:
        return Verdict.ERROR
    own = [comparison for comparison in run.comparisons if comparison.strategy == arm.strategy]
    decisive = [comparison.verdict for comparison in own if comparison.gate is not None]
    if not decisive:
        decisive = [c.verdict for c in own if c.metric == SPEED and not c.advisory]
    return min(decisive, key=_WORST_FIRST.index, default=None)


def gate_code(comparison: Comparison, run: Run) -> ExitCode:
    """The exit code that a gate would give a run in which nothing else is wrong."""
    settings = run.settings
    return exit_code(
        Outcome(
            measured=1,
            failed=0,
            gates=(comparison.verdict,),
            suspicious=comparison.suspicious,
            strict=settings.strict,
            on_inconclusive=settings.on_inconclusive,
            on_missing_baseline=settings.on_missing_baseline,
        )
    )


def title(comparison: Comparison) -> str:
    """Who meets whom, and for a gate the gate as it was written."""
    names = f"{comparison.strategy} against {comparison.reference}"
    return names if comparison.gate is None else f"{names}, {comparison.gate}"


def reason(comparison: Comparison) -> str:
    """Why it has its verdict, with the size, the interval and the pairs, and what could have been seen."""
    text = comparison.reason
    if comparison.minimum_detectable is not None:
        text += f"; minimum detectable effect {percent(comparison.minimum_detectable, 1)}"
    return text


def shown_comparisons(run: Run) -> list[Comparison]:
    """The gates, then without one the speed, and clocks against stored ones."""
    others = [c for c in run.comparisons if c.gate is None and (c.metric == SPEED or c.advisory)]
    return run.gates + others


def notes(run: Run, trials: Sequence[Trial]) -> Iterator[str]:
    """What makes the figures weaker than they look."""
    if run.exit_code == ExitCode.INTERRUPTED:
        yield "interrupted: only the pairs that were finished count"
    for invalid in run.invalid_pairs:
        yield f"pair {invalid.pair} is left out: {invalid.reason}"
    for arm in run.arms:
        measured = [trial for trial in trials if trial.arm == arm.strategy and trial.ok]
        said = Counter(note for trial in measured for note in trial.notes)
        concerned = sum(bool(trial.notes) for trial in measured)
        if said:
            yield f"{arm.strategy}: {said.most_common(1)[0][0]}, in {_of(concerned, len(measured))} trials"
        throttled = dict.fromkeys(why for trial in measured for why in trial.throttled)
        if throttled:
            slowed = _of(sum(bool(trial.throttled) for trial in measured), len(measured))
            yield f"{arm.strategy}: GPUs were held back in {slowed} trials: {', '.join(throttled)}"
    bounded = sum(SPEED in arm.intervals for arm in run.arms)
    if bounded < sum(arm.metrics.get(SPEED) is not None for arm in run.arms):
        level = run.settings.level
        least = least_pairs(level)
        yield f"fewer than {least} trials or pairs have no {percent(level)} interval and no verdict"
    if run.learning is None:
        yield "learning was not measured; --learning compares gradients and losses over seeds"


def learning_lines(run: Run) -> Iterator[str]:
    """What a person should know of each arm's learning."""
    if run.learning is not None:
        yield from (arm.line for arm in run.learning.arms)


def baseline_lines(run: Run) -> Iterator[str]:
    """Which stored baseline was used, and what keeps it from being compared."""
    if run.baseline is None:
        return
    yield f"{run.baseline.name}, in {run.baseline.path}"
    for difference in run.baseline.differences:
        yield f"not comparable: {difference}"


def data_line(run: Run) -> str:
    data = run.data
    counts = f"{number(data.samples, 0)} samples, {number(data.tokens, 0)} real tokens"
    return f"{data.name}: {counts}, {data.fingerprint}"


def trials_line(run: Run, trials: Sequence[Trial]) -> str:
    s, failed = run.settings, sum(not trial.ok for trial in trials)
    looks = f", looked at after {', '.join(map(str, run.looks))} pairs" if len(run.looks) > 1 else ""
    return (
        f"{len(trials)}, {failed} failed{looks}; each {s.warmup_windows} warm-up and {s.windows} measured "
        f"windows of {s.accumulation * s.drafters} micro-batches, token budget "
        f"{number(s.token_budget, 0)}, seed {s.seed}"
    )


def revision_line(run: Run) -> str | None:
    """The commit that ran, and the one that it was held against."""
    if run.revision is None:
        return None
    changed = " with changes" if run.revision.dirty else ""
    against = "" if run.against is None else f", against {run.against.commit[:12]}"
    return f"{run.revision.commit[:12]}{changed}{against}"


def machine_line(run: Run) -> str:
    machine = run.machine
    memory = [f"{number(machine.memory_bytes / 2**30, 0)} GiB"] if machine.memory_bytes else []
    quota = [f"quota {number(machine.cpu_quota)}"] if machine.cpu_quota else []
    versions = [f"{name} {version}" for name, version in machine.versions.items() if version]
    threads = [f"{name}={value}" for name, value in machine.threads.items() if value]
    cores = f"{machine.cores} core{'s' if machine.cores != 1 else ''}"
    facts = [machine.cpu, cores, *quota, *memory, *machine.gpus, machine.platform, f"Python {machine.python}"]
    return ", ".join([*facts, *versions, *threads, f"class {run.class_key or class_key(machine)}"])


def bounds_line(run: Run) -> str | None:
    """What the intervals are; None where there is none."""
    if not any(SPEED in arm.intervals for arm in run.arms):
        return None
    return (
        f"[low, high]: each end is a one-sided {percent(run.settings.level)} bound, of the median trial by "
        "the exact sign test, of the ratio by the exact signed-rank test on pairs of adjacent trials"
    )


def _ratio(comparison: Comparison | None) -> tuple[str, str]:
    if comparison is None or comparison.estimate is None:
        return ABSENT, ""
    estimate = number(comparison.estimate, 3)
    if comparison.low is None or comparison.high is None:
        return estimate, ""
    return estimate, f"[{number(comparison.low, 3)}, {number(comparison.high, 3)}]"


def _figure(arm: Arm, name: str, digits: int | None = None) -> str:
    value = arm.metrics.get(name)
    return ABSENT if value is None else number(value, digits)


def _share(arm: Arm, name: str) -> str:
    value = arm.metrics.get(name)
    return ABSENT if value is None else percent(value, 1)


def _of(some: int, all_: int) -> str:
    return f"{some} of {all_}"
