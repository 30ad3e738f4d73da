"""Records of runs whose figures are given, put together as a real run puts them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dflash.bench.comparisons import compare, compare_exact, unanswered
from dflash.bench.gates import Rules, parse_gates
from dflash.bench.machine import Machine
from dflash.bench.pairs import Duel
from dflash.bench.results import Arm, Data, Plugin, Run, Settings, Trial
from dflash.bench.summary import filled
from dflash.bench.verdict import exit_code, run_verdict

MACHINE = Machine(
    cpu="Some CPU @ 2.00GHz",
    cores=2,
    cpu_quota=1.5,
    memory_bytes=8 * 2**30,
    gpus=["Some GPU"],
    platform="Linux x86_64",
    python="3.11.9",
    versions={"torch": "2.13.0", "transformers": None},
    threads={"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": None},
)
FAILURE = "PlanError: strategy 'bucketed' repeats sample 17 [red]in[/red]\nwindow 3\x1b[31m\x07 | <b> & \"x\""


def a_trial(pair: int, arm: str, tok_s: float, **changes: Any) -> Trial:
    """A trial of these many real tokens per second; further keys are metrics, or fields of a trial."""
    figures: dict[str, float | None] = {
        "tok_s": tok_s,
        "padded_tok_s": 2 * tok_s,
        "loss_tok_s": tok_s / 3,
        "padding_efficiency": 0.5,
        "anchor_slot_efficiency": 0.875,
        "label_coverage": 0.631,
        "final_loss": 5.12345,
        "gradient_diversity": 0.0,
        "target_utilisation": 0.914,
        "drafter_utilisation": None,
        "wall_seconds": 1.25,
    }
    fields = {key: changes.pop(key) for key in list(changes) if key in Trial.__struct_fields__}
    return Trial(
        pair=pair,
        slot=0,
        arm=arm,
        seed=0,
        status="ok",
        metrics=figures | changes,
        losses=[1.0],
        bottleneck="target",
        **fields,
    )


def a_run(
    speeds: Mapping[str, float | None],
    pairs: int = 6,
    fail_on: Sequence[str] = (),
    rules: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Mapping[str, Any]] | None = None,
    **changes: Any,
) -> tuple[Run, list[Trial]]:
    """Every arm after the first against the first. No speed: the arm fails.

    ``metrics`` are further figures of an arm's trials; ``changes`` are fields of the run.
    """
    reference, *others = speeds
    duels = [Duel(reference, other) for other in others] or [Duel(None, reference)]
    trials = [
        _trial(number * len(duels) + which, arm, speeds[arm], number, (metrics or {}).get(arm, {}))
        for number in range(pairs)
        for which, duel in enumerate(duels)
        for arm in (duel.reference, duel.candidate)
        if arm is not None
    ]
    decided = Rules(gates=parse_gates(fail_on), **(rules or {}))
    plugin = Plugin(distribution="dflash", version="0.1.0", file_hash="abc")
    arms = filled([Arm(strategy=name, options={}, plugin=plugin) for name in speeds], trials)
    found = compare(trials, duels, decided) + compare_exact(arms, duels, decided)
    found += unanswered([duel.candidate for duel in duels], found, decided)
    gated = [one for one in found if one.gate is not None]
    outcome = decided.outcome(
        [one.verdict for one in gated],
        measured=sum(trial.ok for trial in trials),
        failed=sum(arm.error is not None for arm in arms) if trials else 0,
        suspicious=any(one.suspicious for one in gated),
    )
    settings = Settings(
        token_budget=4096,
        accumulation=2,
        drafters=1,
        warmup_windows=2,
        windows=6,
        rounds=pairs,
        seed=7,
        gates=list(fail_on),
        strict=decided.strict,
        on_inconclusive=decided.on_inconclusive,
        on_missing_baseline=decided.on_missing_baseline,
    )
    run = Run(
        run_id="01ARZ3NDEKTSV4RRFFQ69G5FAV",
        verdict=run_verdict(outcome),
        exit_code=exit_code(outcome),
        reference=reference,
        arms=arms,
        comparisons=found,
        settings=settings,
        data=Data(name="sample", fingerprint="f00dcafe", samples=11_873, tokens=1_234_567),
        machine=MACHINE,
    )
    return msgspec.structs.replace(run, **changes), trials


def _trial(pair: int, arm: str, speed: float | None, number: int, more: Mapping[str, Any]) -> Trial:
    if speed is None:
        return Trial(pair=pair, slot=1, arm=arm, seed=0, status="failed", error=FAILURE)
    return a_trial(pair, arm, speed * (1 + number / 100), **more)
