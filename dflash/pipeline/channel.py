"""Channels between stages: two kinds of ends, bounded, first in first out, with trio's rules for closing.

- Senders and receivers are any number: ``clone()`` one for each stage. An item goes to one receiver.
- The stream ends (``EndOfChannel``) when the *last* sender has closed and every item has been taken.
- A send fails (``BrokenChannel``) when no receiver is left; what was buffered for it is let go.
- Closing wakes whoever waits. Using an end after closing it is an error (``ClosedChannel``); closing it again
  is not.
- At most ``items`` items and, if given, ``bytes`` declared bytes are buffered. Waiting senders do not
  overtake each other, whatever the sizes of their items.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Generic, Self, TypeVar, final

from dflash.pipeline.core import ChannelStatistics, Core
from dflash.pipeline.operation import ClosedChannel, EndOfChannel, Operation

T = TypeVar("T")

CALLER = "caller"
"""Who holds an end until it is given to a stage."""


class End:
    """What senders and receivers have in common. ``holder`` is the name of the stage that it was given to."""

    _sends: bool

    def __init__(self, core: Core, holder: str) -> None:
        self.core = core
        self.holder = holder
        self.closed = False
        self.place: int | None = None
        """its number among the ends of a stage in another process"""
        core.attach(self, sends=self._sends)

    def clone(self) -> Self:
        """Another end of the same kind and holder, to be closed on its own. Raises ``ClosedChannel``."""
        if self.closed:
            raise ClosedChannel(f"a closed end of channel {self.core.name!r} cannot be cloned")
        return type(self)(self.core, self.holder)

    def close(self) -> None:
        """Give this end up. A second time does nothing."""
        self.closed = True
        self.core.detach(self)

    def __reduce__(self) -> Any:
        if self.place is None:
            raise TypeError(
                f"an end of channel {self.core.name!r} can go to another process with its stage only"
            )
        return _remote_end, (type(self), self.place, self.core.name, self.core.bytes, self.holder)

    def statistics(self) -> ChannelStatistics:
        """The channel's figures at this moment."""
        return self.core.statistics()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


@final
class Sender(End, Generic[T]):
    """The sending end."""

    _sends = True

    async def send(self, item: T, *, nbytes: int | None = None) -> None:
        """Wait for room and hand ``item`` over; a channel that is bounded by bytes requires its ``nbytes``.

        Raises ``BrokenChannel``, ``ClosedChannel``, and ``ItemTooLarge`` for an item that could never fit.
        """
        if nbytes is None:
            if self.core.bytes is not None:
                raise ValueError(
                    f"channel {self.core.name!r} is bounded by bytes: give send() the item's nbytes"
                )
            nbytes = 0
        elif nbytes < 0:
            raise ValueError(f"an item sent to channel {self.core.name!r} cannot have {nbytes} bytes")
        await Operation(self, sends=True, item=item, nbytes=nbytes)


@final
class Receiver(End, Generic[T]):
    """The receiving end; ``async for`` over it ends with the stream."""

    _sends = False

    async def receive(self) -> T:
        """Wait for the next item. Raises ``EndOfChannel`` and ``ClosedChannel``."""
        item: T = await Operation(self, sends=False)
        return item

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        try:
            return await self.receive()
        except EndOfChannel:
            raise StopAsyncIteration from None


def channel(
    name: str, *, items: int, bytes: int | None = None, holder: str = CALLER
) -> tuple[Sender[Any], Receiver[Any]]:
    """The first two ends of a channel for at most ``items`` items and ``bytes`` bytes (None: any number).

    Inside a pipeline use ``Pipeline.channel``, which also ends it when a stage fails.
    """
    core = Core(name, items, bytes)
    return Sender(core, holder), Receiver(core, holder)


def _remote_end(kind: type[End], place: int, name: str, bytes: int | None, holder: str) -> End:
    from dflash.pipeline.wire import RemoteCore

    return kind(RemoteCore(place, name, bytes), holder)  # type: ignore[arg-type]
