"""The same plans again in new processes, where hashes, addresses and imports are others."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable

from dflash.batching.plan import Strategy
from dflash.testing.cases import KEYS, varied_case

_PROGRAM = "from dflash.testing.fresh_process import answer; answer()"


def digests(strategy: Strategy) -> list[str]:
    """One digest for each seed and epoch of the cases."""
    cases = [varied_case(*key) for key in KEYS]
    return [strategy.plan(case.lengths, case.request).digest() for case in cases]


def digests_elsewhere(strategy: Strategy, hash_seeds: Iterable[str]) -> dict[str, list[str]]:
    """`digests` as found by one new process for each PYTHONHASHSEED, all at once.

    Raises RuntimeError if the strategy cannot be moved or does not plan there.
    """
    try:
        pickled = pickle.dumps(strategy)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise RuntimeError(
            f"cannot be moved to another process ({error}): define it at the top of a module"
        ) from None
    processes = {seed: _start(seed) for seed in hash_seeds}
    answers = {seed: process.communicate(pickled) for seed, process in processes.items()}
    for seed, (_, err) in answers.items():
        if processes[seed].returncode:
            reason = (err.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
            raise RuntimeError(f"in a new process: {reason}")
    # Plugins may print while they are imported; ours is the last line.
    return {seed: json.loads(out.splitlines()[-1]) for seed, (out, _) in answers.items()}


def answer() -> None:
    """What the new process does: a pickled strategy on its standard input, digests as JSON on its output."""
    print(json.dumps(digests(pickle.load(sys.stdin.buffer))))


def _start(hash_seed: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
