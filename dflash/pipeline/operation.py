"""What a stage awaits: one send or receive, and the ways in which it can end other than well.

A stage function knows nothing of threads. ``await sender.send(item)`` yields an ``Operation`` to whatever
drives the stage; the driver starts it, waits in its own way while it is queued, and resumes the stage with
the outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from dflash.errors import DflashError

if TYPE_CHECKING:
    from dflash.pipeline.channel import End

T = TypeVar("T")


class ChannelError(Exception):
    """An operation that its channel cannot carry out; escaping from a stage it is a bug in the stage."""


class EndOfChannel(ChannelError):
    """Every sender has closed and every item has been taken."""


class BrokenChannel(ChannelError):
    """A send that nobody can receive: the last receiver has closed."""


class ClosedChannel(ChannelError):
    """An operation on an end that was closed before, or while the operation waited."""


class ItemTooLarge(DflashError):
    """An item of more bytes than its channel may ever hold."""


class Aborted(BaseException):
    """The pipeline has ended. Not an ``Exception``, so that a stage's own error handling lets it pass."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(f"the pipeline has ended: {cause}")
        self.cause = cause


class Operation:
    """One send (``sends``) or receive through ``end``.

    ``item`` is what is to be sent until it is handed over, and what was received until the stage takes it.
    """

    __slots__ = ("done", "end", "error", "item", "nbytes", "sends", "wake")

    def __init__(self, end: End, *, sends: bool, item: Any = None, nbytes: int = 0) -> None:
        self.end = end
        self.sends = sends
        self.item = item
        self.nbytes = nbytes
        self.done = False
        self.error: BaseException | None = None
        self.wake: Callable[[], object] | None = None

    def __await__(self) -> Generator[Operation, Any, Any]:
        yield self
        # The driver keeps this until the stage's next operation. The outcome is taken out of it: neither an
        # item (gigabytes of features) nor what the traceback of an error refers to should live as long.
        if self.error is not None:
            raise self.take_error()
        return self.take_item()

    def start(self, wake: Callable[[], object]) -> bool:
        """Carry it out now (True), or queue it and have ``wake()`` called when it is done (False).

        ``wake`` is called from any thread, must not block, and may be called again after Ctrl-C.
        """
        return self.end.core.start(self, wake)

    def finish(self, error: BaseException | None = None) -> None:
        """For the channel only: settle the outcome and wake whoever waits."""
        self.error = error
        self.done = True
        if self.wake is not None:
            self.wake()

    def take_item(self) -> Any:
        """The item, once; afterwards, and when a send is done, it is None."""
        item, self.item = self.item, None
        return item

    def take_error(self) -> BaseException:
        """The error of an operation that failed, once."""
        error, self.error = self.error, None
        assert error is not None
        return error

    @property
    def activity(self) -> Literal["blocked", "starved"]:
        """What a stage is while it waits for this."""
        return "blocked" if self.sends else "starved"

    def __str__(self) -> str:
        return f"to {'send to' if self.sends else 'receive from'} {self.end.core}"


def advance(steps: Generator[Any, Any, T]) -> Operation:
    """Run a stage from its start, or from an operation that is done, to its next operation.

    Raises ``StopIteration`` with the result when the stage returns, and whatever the stage raises.
    """
    operation = next(steps)
    if not isinstance(operation, Operation):
        steps.close()
        raise TypeError(f"a stage can await channel operations only, not {operation!r}")
    return operation
