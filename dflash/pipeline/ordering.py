"""Results in plan order, whatever the order in which they arrive."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import TypeVar

from dflash.errors import DflashError

T = TypeVar("T")


class OutOfOrder(DflashError):
    """The ids of a stream are not 0, 1, 2, ... once each."""


async def in_order(items: AsyncIterable[T], key: Callable[[T], int]) -> AsyncIterator[T]:
    """Yield the items by their id ``key(item)``: 0, 1, 2, ...

    Holds back what came early, so its buffer is bounded by how many items the caller lets be under way at
    once. Raises ``OutOfOrder`` for an id that repeats, and for a stream that ends before a missing one.
    """
    early: dict[int, T] = {}
    following = 0
    async for item in items:
        number = key(item)
        if number < following or number in early:
            raise OutOfOrder(f"id {number} came twice" if number >= 0 else f"id {number} is below 0")
        early[number] = item
        while following in early:
            yield early.pop(following)
            following += 1
    if early:
        missing = sorted(set(range(following, max(early))) - early.keys())
        names = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
        raise OutOfOrder(f"the stream ended without id {names}; the last that came is {max(early)}")
