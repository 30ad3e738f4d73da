"""One stage in a process of its own, and how it reaches the channels, which stay with the caller.

The worker's ends have a :class:`RemoteCore`; starting an operation on it sends a message through the worker's
pipe and waits for the answer. On the caller's side a thread (``engines/process.py``) carries it out on the
real channel as if it were the stage itself. So closing, bounds, deadlocks and telemetry are the very ones of
threads, and a worker that dies loses nothing but its own item.

A pipe carries descriptors, never tensors: those travel in slots (``slots.py``).
"""

from __future__ import annotations

import faulthandler
import io
import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

from dflash.pipeline.operation import Aborted, ClosedChannel, Operation, advance
from dflash.pipeline.stage import Stage, current_stage
from dflash.processes import become_child

if TYPE_CHECKING:
    from collections.abc import Callable

    from dflash.pipeline.channel import End

# What a worker may say. Each is a tuple that starts with one of these; the first two are what a stage tells.
WORK, BARRIER = "work", "barrier"
SEND, RECEIVE, CLOSE, RETURNED, RAISED = "send", "receive", "close", "returned", "raised"


class ConnectionLost(Exception):
    """The other side of a pipe has gone."""


class PeerFailed(Exception):
    """What a worker cannot go on without has failed elsewhere: another worker of its group has the cause."""


@dataclass(frozen=True)
class Spans:
    """Nanoseconds of a worker's last busy stretch that its stage marked as something else."""

    copy: int = 0
    barrier: int = 0


class _Pickler(ForkingPickler):
    # torch would put a tensor into shared memory of its own, for each message anew.
    def reducer_override(self, item: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(item, torch.Tensor):
            raise TypeError("a tensor cannot go through a pipe: put it into a slot and send its descriptor")
        return NotImplemented


def _pickled(item: object) -> memoryview:
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(item)
    return buffer.getbuffer()


@dataclass(frozen=True)
class Parcel:
    """What a new process is given. It arrives as bytes, to be opened where a failure of that can be told."""

    contents: Any

    def __reduce__(self) -> Any:
        return bytes, (bytes(_pickled(self.contents)),)


class Wire:
    """One end of a worker's pipe. A message is pickled before its first byte is written."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, message: tuple[Any, ...]) -> None:
        """Raises ``ConnectionLost``; and TypeError or PicklingError, nothing having been sent."""
        content = _pickled(message)
        try:
            self._connection.send_bytes(content)
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    def receive(self) -> tuple[Any, ...]:
        """Wait for a message. Raises ``ConnectionLost``, also for half a message of a sender that died."""
        try:
            content = self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise ConnectionLost(str(error)) from error
        message: tuple[Any, ...] = pickle.loads(content)
        return message

    def shut(self) -> None:
        """End both directions; what has arrived can still be received. Wakes whoever waits on either side."""
        with suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the descriptor back. Nobody may use this end any more, nor wait on it."""
        self._connection.close()


class RemoteCore:
    """Stands in a worker for the core of a channel: what ``End`` and ``Operation`` need of one."""

    def __init__(self, place: int, name: str, bytes: int | None) -> None:
        self.place = place
        self.name = name
        self.bytes = bytes
        self._ends: list[End] = []

    def start(self, operation: Operation, wake: Callable[[], object]) -> bool:
        """Carry the operation out, however long it takes."""
        worker = _worker()
        if operation.end.closed:
            worker.closed(operation, self.name)
        elif operation.sends:
            worker.ask(operation, (SEND, self.place, operation.take_item(), operation.nbytes))
        else:
            worker.ask(operation, (RECEIVE, self.place))
        return True

    def attach(self, end: End, *, sends: bool) -> None:
        """Count a new end."""
        self._ends.append(end)

    def detach(self, end: End) -> None:
        """Close an end, once; the one that these stand for closes with the last of them."""
        if end in self._ends:
            self._ends.remove(end)
            if not self._ends:
                _worker().say((CLOSE, self.place))


@dataclass
class Worker:
    """The one stage of this process."""

    wire: Wire
    stage: Stage

    def say(self, message: tuple[Any, ...]) -> None:
        """Send ``message``. Raises ``Aborted`` if nobody listens any more."""
        try:
            self.wire.send(message)
        except ConnectionLost as lost:
            raise Aborted(lost) from None

    def ask(self, operation: Operation, message: tuple[Any, ...]) -> None:
        """Have ``message`` carried out, and ``operation`` end as it did."""
        self.stage.wait(operation)
        try:
            self.wire.send((*message, self.take_spans()))
            good, answer = self.wire.receive()
        except ConnectionLost as lost:
            raise Aborted(lost) from None
        finally:
            self.stage.go_on()
        if good:
            operation.item = answer
        operation.finish(None if good else answer)

    def closed(self, operation: Operation, name: str) -> None:
        """``operation`` is on an end that this worker has closed."""
        operation.finish(
            ClosedChannel(f"this end of channel {name!r} was closed by its holder, {self.stage.name}")
        )

    def take_spans(self) -> Spans:
        """What the stage has marked since the last time."""
        return Spans(copy=self.stage.clock.take("copy"), barrier=self.stage.clock.take("barrier"))


_here: list[Worker] = []


def _worker() -> Worker:
    return _here[0]


def main(connection: Connection, stacks: Connection, name: str, parcel: bytes) -> None:
    """The whole life of a worker: run one stage to its end and say how it ended.

    ``parcel`` holds what runs before the stage (a function or None), the stage function and its arguments.
    """
    faulthandler.register(signal.SIGUSR1, file=stacks.fileno(), all_threads=True)
    become_child()
    worker = Worker(Wire(connection), Stage(name, "busy"))
    _here.append(worker)
    current_stage.set(worker.stage)
    worker.stage.tell = lambda which, value: worker.say((which, value))
    try:
        on_thread_start, function, args, kwargs = pickle.loads(parcel)
        if on_thread_start is not None:
            on_thread_start()
        _drive(function(*args, **kwargs))
        last: tuple[Any, ...] = (RETURNED, worker.take_spans())
    except Aborted:
        return
    except BaseException as error:
        last = (RAISED, *_portable(error))
    with suppress(ConnectionLost):
        worker.wire.send(last)


def _drive(stage: Coroutine[Any, Any, None]) -> None:
    steps = stage.__await__()
    while True:
        try:
            operation = advance(steps)
        except StopIteration:
            return
        operation.start(_nothing)


def _portable(error: BaseException) -> tuple[BaseException, list[str], str]:
    """An exception as it can travel, its notes, and its traceback as text."""
    notes = list(getattr(error, "__notes__", ()))
    text = "".join(traceback.format_exception(error))
    try:
        again = pickle.loads(_pickled(error))
    except Exception:
        again = None
    if type(again) is not type(error) or str(again) != str(error):
        again = RuntimeError(f"{type(error).__name__}: {error}")
    return again, notes, text


def _nothing() -> None:
    pass
