"""The state of one channel: a bounded buffer between two queues of waiting operations.

Every method is atomic and none blocks, so that the same core serves threads and a single-threaded scheduler.
Waiting operations are served strictly in order of arrival: without that, a large item could wait for ever
behind small ones that always find room in the byte bound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from dflash.pipeline.operation import (
    Aborted,
    BrokenChannel,
    ClosedChannel,
    EndOfChannel,
    ItemTooLarge,
    Operation,
)

if TYPE_CHECKING:
    from dflash.pipeline.channel import End


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStatistics:
    """One channel at one moment, or over an interval (see ``Telemetry.__sub__``)."""

    name: str
    items: int
    """Items in the buffer now."""
    bytes: int
    """Their declared sizes, summed."""
    peak_items: int
    """Most items ever in the buffer; one that is handed straight to a waiting receiver is never in it."""
    peak_bytes: int
    """Most bytes ever in the buffer."""
    total_items: int
    """Items accepted, those handed straight to a waiting receiver included."""
    seconds_full: float
    """Time during which the next sender would have waited."""
    seconds_empty: float
    """Time during which the next receiver would have waited."""
    waiting_senders: int
    waiting_receivers: int


class Core:
    """See the module. ``items`` and ``bytes`` are the bounds; ``bytes`` None is no bound."""

    def __init__(self, name: str, items: int, bytes: int | None) -> None:
        if items < 1:
            raise ValueError(f"channel {name!r} needs room for at least 1 item, not {items}")
        if bytes is not None and bytes < 1:
            raise ValueError(f"channel {name!r} needs room for at least 1 byte, not {bytes}")
        self.name = name
        self.items = items
        self.bytes = bytes
        self._lock = Lock()
        self._senders: list[End] = []
        self._receivers: list[End] = []
        self._buffer: deque[tuple[Any, int]] = deque()
        self._buffered_bytes = 0
        # A receiver waits only while the buffer is empty, a sender only while it is not.
        self._sending: deque[Operation] = deque()
        self._receiving: deque[Operation] = deque()
        self._cause: BaseException | None = None
        self._peak_items = self._peak_bytes = self._total_items = 0
        self._full_ns = self._empty_ns = 0
        self._since_ns = perf_counter_ns()

    def __str__(self) -> str:
        with self._lock:
            senders = ", ".join(sorted({end.holder for end in self._senders})) or "none"
            receivers = ", ".join(sorted({end.holder for end in self._receivers})) or "none"
            held = f"{len(self._buffer)} of {self.items} items"
            if self.bytes is not None:
                held += f", {self._buffered_bytes} of {self.bytes} bytes"
        return f"{self.name!r} ({held}; senders: {senders}; receivers: {receivers})"

    def start(self, operation: Operation, wake: Callable[[], object]) -> bool:
        """``Operation.start``."""
        with self._lock:
            self._account()
            error = self._refusal(operation)
            if error is not None:
                operation.finish(error)
            elif operation.sends:
                self._send(operation, wake)
            else:
                self._receive(operation, wake)
            return operation.done

    def attach(self, end: End, *, sends: bool) -> None:
        """Count a new end."""
        with self._lock:
            (self._senders if sends else self._receivers).append(end)

    def detach(self, end: End) -> None:
        """Close an end, once. Its own waiting operations fail, and so do those that it leaves alone."""
        with self._lock:
            self._account()
            if end in self._senders:
                self._senders.remove(end)
                self._sending = self._fail_those_of(end, self._sending)
                self._admit()
                if not self._senders:
                    _finish_all(self._receiving, lambda: EndOfChannel(self.name))
            elif end in self._receivers:
                self._receivers.remove(end)
                self._receiving = self._fail_those_of(end, self._receiving)
                if not self._receivers:
                    self._discard()
                    _finish_all(self._sending, lambda: BrokenChannel(self._broken()))

    def held_by(self, holder: str) -> list[End]:
        """The open ends that belong to ``holder``."""
        with self._lock:
            return [end for end in (*self._senders, *self._receivers) if end.holder == holder]

    def abort(self, cause: BaseException) -> None:
        """Fail every waiting and later operation with ``Aborted(cause)``; let go of what is buffered."""
        with self._lock:
            self._account()
            self._cause = self._cause or cause
            self._discard()
            _finish_all(self._sending, lambda: Aborted(cause))
            _finish_all(self._receiving, lambda: Aborted(cause))

    def statistics(self) -> ChannelStatistics:
        """The figures of this moment."""
        with self._lock:
            self._account()
            return ChannelStatistics(
                name=self.name,
                items=len(self._buffer),
                bytes=self._buffered_bytes,
                peak_items=self._peak_items,
                peak_bytes=self._peak_bytes,
                total_items=self._total_items,
                seconds_full=self._full_ns / 1e9,
                seconds_empty=self._empty_ns / 1e9,
                waiting_senders=len(self._sending),
                waiting_receivers=len(self._receiving),
            )

    # All that follows runs under the lock. Ctrl-C can stop the main thread between any two steps of it, and
    # then abort() is next. So an operation is finished first and leaves its queue after that: else it could
    # be neither done nor queued, and its stage would never wake.

    def _refusal(self, operation: Operation) -> BaseException | None:
        if self._cause is not None:
            return Aborted(self._cause)
        if operation.end.closed:
            return ClosedChannel(
                f"this end of channel {self.name!r} was closed by its holder, {operation.end.holder}"
            )
        if not operation.sends:
            return None if self._senders or self._buffer else EndOfChannel(self.name)
        if not self._receivers:
            return BrokenChannel(self._broken())
        if self.bytes is not None and operation.nbytes > self.bytes:
            return ItemTooLarge(
                f"an item of {operation.nbytes} bytes does not fit into channel {self.name!r}, "
                f"which is bounded to {self.bytes} bytes; raise the bound or lower the token budget"
            )
        return None

    def _send(self, operation: Operation, wake: Callable[[], object]) -> None:
        if self._receiving:
            receiving = self._receiving[0]
            receiving.item = operation.take_item()
            self._total_items += 1
            receiving.finish()
            self._receiving.popleft()
            operation.finish()
        elif self._fits(operation) and not self._sending:
            self._push(operation)
        else:
            operation.wake = wake
            self._sending.append(operation)

    def _receive(self, operation: Operation, wake: Callable[[], object]) -> None:
        if self._buffer:
            operation.item, nbytes = self._buffer.popleft()
            self._buffered_bytes -= nbytes
            operation.finish()
            self._admit()
        else:
            operation.wake = wake
            self._receiving.append(operation)

    def _fits(self, operation: Operation) -> bool:
        within_bytes = self.bytes is None or self._buffered_bytes + operation.nbytes <= self.bytes
        return within_bytes and len(self._buffer) < self.items

    def _push(self, operation: Operation) -> None:
        self._buffer.append((operation.take_item(), operation.nbytes))
        self._buffered_bytes += operation.nbytes
        self._total_items += 1
        self._peak_items = max(self._peak_items, len(self._buffer))
        self._peak_bytes = max(self._peak_bytes, self._buffered_bytes)
        operation.finish()

    def _admit(self) -> None:
        while self._sending and self._fits(self._sending[0]):
            self._push(self._sending[0])
            self._sending.popleft()

    def _discard(self) -> None:
        self._buffer.clear()
        self._buffered_bytes = 0

    def _fail_those_of(self, end: End, waiting: deque[Operation]) -> deque[Operation]:
        for operation in waiting:
            if operation.end is end:
                operation.finish(
                    ClosedChannel(f"this end of channel {self.name!r} was closed while it waited")
                )
        return deque(operation for operation in waiting if operation.end is not end)

    def _broken(self) -> str:
        return f"no receiver is left on channel {self.name!r}"

    def _account(self) -> None:
        now = perf_counter_ns()
        elapsed, self._since_ns = now - self._since_ns, now
        over = self._cause is not None or not self._receivers or not (self._senders or self._buffer)
        if over:
            return
        if not self._buffer:
            self._empty_ns += elapsed
        elif self._sending or len(self._buffer) == self.items or self._buffered_bytes == self.bytes:
            self._full_ns += elapsed


def _finish_all(waiting: deque[Operation], error: Callable[[], BaseException]) -> None:
    while waiting:
        waiting[0].finish(error())
        waiting.popleft()
