"""Stages for the processes of workers, which must be able to import them, and that soon."""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import signal
import time

import numpy as np
import torch

from dflash.pipeline import Receiver, Sender, span, working_on


async def count(outbox: Sender[int], up_to: int) -> None:
    for number in range(up_to):
        await outbox.send(number)


async def tell_pid(outbox: Sender[int], inbox: Receiver[int]) -> None:
    await outbox.send(os.getpid())
    async for _ in inbox:
        pass


async def kill_at(inbox: Receiver[int], outbox: Sender[int], number: int) -> None:
    async for item in inbox:
        with working_on(f"item {item}"):
            if item == number:
                os.kill(os.getpid(), signal.SIGKILL)
        await outbox.send(item)


async def ignore_sigterm(outbox: Sender[int]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    await outbox.send(os.getpid())
    time.sleep(60)


async def send_big(inbox: Receiver[int], outbox: Sender[np.ndarray]) -> None:
    async for number in inbox:
        await outbox.send(np.full(1_000_000, number))


async def send_tensor(outbox: Sender[torch.Tensor]) -> None:
    await outbox.send(torch.zeros(3))


async def threads_and_hook(outbox: Sender[tuple[int, str | None]]) -> None:
    await outbox.send((torch.get_num_threads(), os.environ.get("HOOK")))


class Picky(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} is not {two}")


async def raise_picky(outbox: Sender[int]) -> None:
    raise Picky(1, 2)


def hook() -> None:
    os.environ["HOOK"] = "ran"
    torch.set_num_threads(1)


async def tell_signals(outbox: Sender[int]) -> None:
    while True:
        await outbox.send(os.getpid())
        time.sleep(0.01)


async def leave_a_child_behind(outbox: Sender[int]) -> None:
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    await outbox.send(child)
    os.kill(os.getpid(), signal.SIGKILL)


async def receive_thing(inbox: Receiver[int], thing: object) -> None:
    async for _ in inbox:
        pass


async def hold_the_interpreter(outbox: Sender[int]) -> None:
    await outbox.send(os.getpid())
    with working_on("a riddle"):
        re.match(r"(a+)+$", "a" * 60 + "b")  # one call into C, for hours, in which no other thread runs


async def meet(outbox: Sender[int], hangs: bool) -> None:
    with working_on("window 3"):
        await outbox.send(0)
        if hangs:
            time.sleep(60)
        with span("barrier"):
            time.sleep(60)


class CannotBeOpened:
    def __reduce__(self):
        return refuse, ()


def refuse():
    raise FileNotFoundError("no store here")


def broken_hook() -> None:
    raise RuntimeError("no such device")


def few_descriptors() -> None:
    if multiprocessing.parent_process() is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


def deadly_hook() -> None:
    if multiprocessing.parent_process() is not None:
        os._exit(7)


class WithTensor(Exception):
    pass


async def raise_with_tensor(outbox: Sender[int]) -> None:
    raise WithTensor("bad weights", torch.zeros(1))


async def nothing() -> None:
    pass
