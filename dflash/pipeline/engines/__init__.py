"""The engines: different ways to drive the same stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dflash.errors import UsageError
from dflash.pipeline.engine import Pipeline
from dflash.pipeline.engines.inline import InlinePipeline
from dflash.pipeline.engines.thread import ThreadPipeline

ENGINES = ("inline", "thread", "process")


def open_engine(
    engine: str,
    *,
    on_thread_start: Callable[[], None] | None = None,
    grace: float = 10.0,
    stall_after: float = 600.0,
    preload: Sequence[str] = (),
) -> Pipeline:
    """A pipeline on ``engine``, to be used as a context manager.

    ``on_thread_start`` is the first thing called in every thread that runs stages. After a failure or an
    interrupt the stages get ``grace`` seconds to end; a stage that is silent for ``stall_after`` seconds is a
    failure. Both are for ``thread`` and ``process``: ``inline`` runs stages in the caller's thread, and
    leaves nothing behind. ``process`` gives the stages of ``Pipeline.start_apart`` a process each,
    in which the modules of ``preload`` are loaded already, if the first such engine here named them.

    Raises ``UsageError`` for an unknown engine.
    """
    if engine == "inline":
        return InlinePipeline(on_thread_start)
    if engine == "thread":
        return ThreadPipeline(on_thread_start, grace=grace, stall_after=stall_after)
    if engine == "process":
        from dflash.pipeline.engines.process import ProcessPipeline

        return ProcessPipeline(on_thread_start, grace=grace, stall_after=stall_after, preload=preload)
    raise UsageError(f"there is no engine {engine!r}; choose one of {', '.join(ENGINES)}")
