"""The channel core against an obvious model of it: one list of items, one list of who waits."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dflash.pipeline import (
    Aborted,
    BrokenChannel,
    ClosedChannel,
    EndOfChannel,
    ItemTooLarge,
    Receiver,
    Sender,
    channel,
)
from dflash.pipeline.operation import Operation


class Attempt:
    """One operation on the real channel, and what the model says has become of it."""

    def __init__(self, operation: Operation, number: int) -> None:
        self.operation = operation
        self.number = number
        self.wakes = 0
        self.expected: object = "waits"
        self.at_once = operation.start(self.wake)

    def wake(self) -> None:
        self.wakes += 1

    def outcome(self) -> object:
        if not self.operation.done:
            return "waits"
        if self.operation.error is not None:
            return type(self.operation.error)
        return "sent" if self.operation.sends else self.operation.item


class ChannelAgainstModel(RuleBasedStateMachine):
    @initialize(items=st.integers(1, 4), bytes=st.none() | st.integers(1, 12))
    def open(self, items: int, bytes: int | None) -> None:
        self.items, self.bytes = items, bytes
        sender, receiver = channel("c", items=items, bytes=bytes)
        self.core = sender.core
        self.senders: list[Sender[int]] = [sender, sender.clone()]
        self.receivers: list[Receiver[int]] = [receiver, receiver.clone()]
        self.attempts: list[Attempt] = []
        self.offered: list[
            Attempt
        ] = []  # sends not yet received, oldest first; the first `admitted` are buffered
        self.admitted = 0
        self.wanting: list[Attempt] = []
        self.accepted = 0
        self.aborted = False

    def settle(self) -> None:
        """The model's whole logic: match, then admit while the next one fits."""
        while self.offered and self.wanting:
            send, receive = self.offered.pop(0), self.wanting.pop(0)
            self.accepted += send.expected != "sent"
            send.expected, receive.expected = "sent", send.number
            self.admitted = max(0, self.admitted - 1)
        while self.admitted < min(self.items, len(self.offered)):
            size = sum(send.operation.nbytes for send in self.offered[: self.admitted + 1])
            if self.bytes is not None and size > self.bytes:
                break
            self.offered[self.admitted].expected = "sent"
            self.admitted += 1
            self.accepted += 1

    def live(self, ends: list[Sender[int]] | list[Receiver[int]]) -> int:
        return sum(not end.closed for end in ends)

    @rule(pick=st.integers(0), nbytes=st.integers(0, 14))
    def send(self, pick: int, nbytes: int) -> None:
        end = self.senders[pick % len(self.senders)]
        number = len(self.attempts)
        attempt = Attempt(Operation(end, sends=True, item=number, nbytes=nbytes), number)
        self.attempts.append(attempt)
        if self.aborted:
            attempt.expected = Aborted
        elif end.closed:
            attempt.expected = ClosedChannel
        elif not self.live(self.receivers):
            attempt.expected = BrokenChannel
        elif self.bytes is not None and nbytes > self.bytes:
            attempt.expected = ItemTooLarge
        else:
            self.offered.append(attempt)
            self.settle()

    @rule(pick=st.integers(0))
    def receive(self, pick: int) -> None:
        end = self.receivers[pick % len(self.receivers)]
        attempt = Attempt(Operation(end, sends=False), len(self.attempts))
        self.attempts.append(attempt)
        if self.aborted:
            attempt.expected = Aborted
        elif end.closed:
            attempt.expected = ClosedChannel
        elif not self.offered and not self.live(self.senders):
            attempt.expected = EndOfChannel
        else:
            self.wanting.append(attempt)
            self.settle()

    @rule(pick=st.integers(0), senders=st.booleans())
    def clone(self, pick: int, senders: bool) -> None:
        ends: list[Any] = self.senders if senders else self.receivers
        end = ends[pick % len(ends)]
        if end.closed:
            with pytest.raises(ClosedChannel):
                end.clone()
        else:
            ends.append(end.clone())

    @rule(pick=st.integers(0))
    def close_sender(self, pick: int) -> None:
        end = self.senders[pick % len(self.senders)]
        end.close()
        for attempt in self.offered[self.admitted :]:
            if attempt.operation.end is end:
                attempt.expected = ClosedChannel
        self.offered = [attempt for attempt in self.offered if attempt.expected is not ClosedChannel]
        self.settle()
        if not self.live(self.senders):
            for attempt in self.wanting:
                attempt.expected = EndOfChannel
            self.wanting = []

    @rule(pick=st.integers(0))
    def close_receiver(self, pick: int) -> None:
        end = self.receivers[pick % len(self.receivers)]
        end.close()
        for attempt in self.wanting:
            if attempt.operation.end is end:
                attempt.expected = ClosedChannel
        self.wanting = [attempt for attempt in self.wanting if attempt.expected is not ClosedChannel]
        if not self.live(self.receivers):
            for attempt in self.offered[self.admitted :]:
                attempt.expected = BrokenChannel
            self.offered, self.admitted = [], 0

    @precondition(lambda self: len(self.attempts) > 8)
    @rule()
    def abort(self) -> None:
        self.core.abort(RuntimeError("enough"))
        for attempt in (*self.offered[self.admitted :], *self.wanting):
            attempt.expected = Aborted
        self.offered, self.wanting, self.admitted = [], [], 0
        self.aborted = True

    @invariant()
    def agrees(self) -> None:
        for attempt in self.attempts:
            assert attempt.outcome() == attempt.expected
            assert attempt.wakes == (attempt.operation.done and not attempt.at_once)
        now = self.core.statistics()
        held = self.offered[: self.admitted]
        assert now.items == len(held)
        assert now.bytes == sum(send.operation.nbytes for send in held)
        assert now.waiting_senders == len(self.offered) - len(held)
        assert now.waiting_receivers == len(self.wanting)
        assert now.total_items == self.accepted
        assert now.items <= now.peak_items <= self.items
        assert now.bytes <= now.peak_bytes <= (self.bytes or 10**9)


TestChannelAgainstModel = ChannelAgainstModel.TestCase
TestChannelAgainstModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize(("items", "bytes"), [(0, None), (-1, None), (1, 0)])
def test_a_channel_without_room_is_refused(items: int, bytes: int | None) -> None:
    with pytest.raises(ValueError, match="'c' needs room for at least 1"):
        channel("c", items=items, bytes=bytes)


def test_a_large_item_is_not_overtaken_by_small_ones() -> None:
    sender, receiver = channel("c", items=8, bytes=10)
    sends = [
        Operation(sender, sends=True, item=nbytes, nbytes=nbytes) for nbytes in (6, 9, 1)
    ]  # 6 + 1 would fit, but 9 came before 1
    assert [send.start(lambda: None) for send in sends] == [True, False, False]
    received = []
    for _ in sends:
        receive = Operation(receiver, sends=False)
        assert receive.start(lambda: None)
        received.append(receive.item)
    assert received == [6, 9, 1]


def test_closing_the_end_of_a_large_waiting_item_lets_the_next_one_in() -> None:
    sender, _receiver = channel("c", items=8, bytes=10)
    other = sender.clone()
    sends = [
        Operation(end, sends=True, nbytes=nbytes) for end, nbytes in [(other, 6), (sender, 9), (other, 3)]
    ]
    assert [send.start(lambda: None) for send in sends] == [True, False, False]
    sender.close()
    assert isinstance(sends[1].error, ClosedChannel)
    assert sends[2].done
    assert other.statistics().bytes == 9


def test_an_aborted_channel_lets_go_of_its_items() -> None:
    class Item:
        pass

    sender, _ = channel("c", items=2)
    item = Item()
    gone = weakref.ref(item)
    assert Operation(sender, sends=True, item=item).start(lambda: None)
    del item
    sender.core.abort(RuntimeError("enough"))
    assert gone() is None
