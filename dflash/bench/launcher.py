"""Fresh processes for trials: forked from a server that has torch and the target's module loaded.

The server never runs a model, so a fork of it is as good as a new interpreter and starts in a fraction of
a second. What forks share (hash seed, heap layout, code) is the same for all arms.
"""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Self, cast

from dflash.bench.exchange import Failure, Measurement, TrialRequest
from dflash.errors import DflashError
from dflash.processes import become_child, how_it_ended, interrupts_later, start_fork_server

_SECONDS_TO_END = 5.0
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Launcher:
    """Starts one process per trial. A context manager; leaving it ends a trial that still runs."""

    def __init__(self, model_type: str) -> None:
        # Read by OpenMP when torch is imported, in the server that is started below.
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(
            [
                "dflash.bench.trial",
                "dflash.batching.kernels",
                f"transformers.models.{model_type}.modeling_{model_type}",
            ]
        )
        self._process: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def run(self, request: TrialRequest) -> Measurement | Failure:
        """Run one trial to its end; KeyboardInterrupt ends it and is passed on."""
        answer: Measurement | Failure = self.call(_measure, request)
        return answer

    def call(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """Run ``function(argument)`` in a fresh process and return its result, or the failure."""
        with interrupts_later():
            start_fork_server()
            receiving, sending = self._context.Pipe(duplex=False)
            process = self._context.Process(target=_child, args=(sending, function, argument))
            process.start()
            self._process = process
            sending.close()
        try:
            return receiving.recv()
        except EOFError:
            self._process.join(_SECONDS_TO_END)
            return Failure(f"the trial's process died ({how_it_ended(self._process.exitcode)})", "")
        finally:
            receiving.close()
            self._end()

    def call_all(
        self,
        function: Callable[[Any], Any],
        arguments: Sequence[Any],
        at_once: int,
        done: Callable[[int, Any], None],
    ) -> list[Any]:
        """Run ``function`` on each argument in a fresh process of its own, ``at_once`` of them at a time.

        They start in order; ``done`` is told each one's number and its result, or failure, as they end.
        KeyboardInterrupt ends those that run and is passed on.
        """
        results: list[Any] = [None] * len(arguments)
        waiting = list(range(len(arguments)))[::-1]
        running: dict[Any, tuple[int, Any]] = {}
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    number = waiting.pop()
                    with interrupts_later():
                        start_fork_server()
                        receiving, sending = self._context.Pipe(duplex=False)
                        process = self._context.Process(
                            target=_child, args=(sending, function, arguments[number])
                        )
                        process.start()
                        running[receiving] = number, process
                        sending.close()
                for ready in wait(list(running)):
                    number, process = running.pop(ready)
                    try:
                        results[number] = cast(Connection, ready).recv()
                    except EOFError:
                        process.join(_SECONDS_TO_END)
                        results[number] = Failure(
                            f"the trial's process died ({how_it_ended(process.exitcode)})", ""
                        )
                    cast(Connection, ready).close()
                    _stop(process)
                    done(number, results[number])
        finally:
            for receiving, (_, process) in running.items():
                receiving.close()
                _stop(process)
        return results

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _stop(process)


def _stop(process: Any) -> None:
    """A trial that has answered ends by itself; one that was interrupted is killed."""
    process.join(0.2)
    if process.is_alive():
        process.kill()
        process.join(_SECONDS_TO_END)
    process.close()


def _measure(request: TrialRequest) -> Measurement:
    from dflash.bench.trial import measure_trial

    return measure_trial(request)


def _child(answer: Connection, function: Callable[[Any], Any], argument: Any) -> None:
    become_child()
    import torch

    torch.set_num_threads(1)
    result: Any
    try:
        result = function(argument)
    except Exception as error:
        known = isinstance(error, DflashError)
        text = str(error) if known else f"{type(error).__name__}: {error}"
        result = Failure(" ".join(text.split()), traceback.format_exc())
    with suppress(BrokenPipeError):  # whoever asked was interrupted
        answer.send(result)
    answer.close()
