"""Trials that are each a new interpreter, for arms that run another revision's code.

Forks of one server share hash seed, heap layout and code; revisions can share none of them.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from dflash.bench.exchange import Failure, Measurement, TrialRequest
from dflash.bench.launcher import THREAD_VARIABLES
from dflash.bench.metrics import METRICS
from dflash.bench.results import Plugin
from dflash.bench.revision import Checkout
from dflash.config import Config
from dflash.errors import UsageError
from dflash.processes import how_it_ended

_SCRIPT = Path(__file__).with_name("one_trial.py")
_SECONDS_TO_END = 5.0


class ExecLauncher:
    """Runs trials in the code of one checkout. A context manager; leaving it ends a trial that still runs."""

    def __init__(self, checkout: Checkout) -> None:
        self.checkout = checkout
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def run(self, request: TrialRequest) -> Measurement | Failure:
        """Run one trial to its end; KeyboardInterrupt ends it and is passed on."""
        plain = {field.name: getattr(request, field.name) for field in dataclasses.fields(request)}
        plain |= {
            "config": msgspec.to_builtins(request.config),
            "defaults": msgspec.to_builtins(Config()),
        }
        answer = self._ask({"request": plain})
        if isinstance(answer, Failure):
            return answer
        known = {field.name for field in dataclasses.fields(Measurement)}
        metrics = {name: value for name, value in answer["metrics"].items() if name in METRICS}
        return msgspec.convert(
            {name: value for name, value in answer.items() if name in known} | {"metrics": metrics},
            Measurement,
        )

    def plugins(self, strategies: Sequence[str], blocked: tuple[str, ...]) -> dict[str, Plugin | str]:
        """Where this code has each strategy from, or why it does not have it.

        Raises:
            UsageError: the code cannot be asked, or is not the checkout's.
        """
        answer = self._ask({"probe": list(strategies), "blocked": blocked})
        commit = self.checkout.revision.commit[:12]
        if isinstance(answer, Failure):
            raise UsageError(f"revision {commit} cannot be measured: {answer.message}")
        hidden = [root for root in self.checkout.roots if (root / "dflash").is_dir()]
        file = answer["file"] or "a folder without code"
        if hidden and not Path(file).is_relative_to(hidden[0]):
            raise UsageError(f"revision {commit} cannot be measured: {file} hides its code")
        return {
            name: found if isinstance(found, str) else Plugin(**found)
            for name, found in answer["strategies"].items()
        }

    def _ask(self, question: dict[str, Any]) -> Any:
        environment = os.environ | dict.fromkeys(THREAD_VARIABLES, "1") | self.checkout.environment()
        environment.pop("PYTHONHASHSEED", None)  # no layout of hashes shall favour one side in every trial
        reading, writing = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_SCRIPT), str(writing)],
                stdin=subprocess.PIPE,
                env=environment,
                pass_fds=[writing],
                process_group=0,
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        try:
            with open(reading, "rb") as answers:
                assert self._process.stdin is not None
                self._process.stdin.write(pickle.dumps(question))
                self._process.stdin.close()
                content = answers.read()
            if not content:
                return Failure(f"the trial's process died ({how_it_ended(self._process.wait())})", "")
            answer = pickle.loads(content)
            return Failure(answer["failure"], answer["traceback"]) if "failure" in answer else answer
        except BrokenPipeError:
            return Failure(f"the trial's process died ({how_it_ended(self._process.wait())})", "")
        finally:
            self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for stop, seconds in ((None, 0.2), (process.terminate, _SECONDS_TO_END), (process.kill, None)):
            if stop is not None:
                stop()
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
                return
