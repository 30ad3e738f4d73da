"""What the tests of the launcher run in its processes."""

from __future__ import annotations

import os
import signal
import sys
import time


def threads_of_a_busy_stage(_):
    """CPU seconds of the whole process against those of the one thread that multiplies."""
    import torch

    from dflash.pipeline import open_engine

    used = {}

    async def multiply():
        a = torch.randn(700, 700)
        start, process = time.thread_time(), time.process_time()
        while time.thread_time() - start < 0.5:
            a = a @ a / 700
        used["thread"] = time.thread_time() - start
        used["process"] = time.process_time() - process
        used["threads"] = torch.get_num_threads()

    from dflash.training.run import prepare_worker

    with open_engine("thread", on_thread_start=prepare_worker) as pipeline:
        pipeline.start("multiply", multiply)
    return used


def preloaded(_):
    return {"torch" in sys.modules, "transformers.models.qwen3.modeling_qwen3" in sys.modules}, os.getpid()


def fail(_):
    raise ValueError("no\nway")


def die(_):
    os.kill(os.getpid(), signal.SIGKILL)


def sleep(marker):
    with open(marker, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(60)


def sleep_or_fail(marker):
    """Sleep where there is a marker to write."""
    (fail if marker is None else sleep)(marker)
