"""The drafters of a run as one: what is summed over them at the end of every window.

Each drafter has all weights and its own optimizer; what they step on is the same sum, so they stay equal to
the last bit. On a CPU the sum is taken in rank order, whatever the order of arrival, so a run with the same
number of drafters repeats to the last bit on every engine.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from dflash.pipeline.channel import Receiver, Sender
from dflash.pipeline.stage import span
from dflash.pipeline.wire import PeerFailed

Record = TypeVar("Record")


class Group(Protocol):
    """What one drafter sees of all of them."""

    rank: int
    size: int

    async def reduce(self, parameters: Sequence[nn.Parameter], record: Record) -> list[Record]:
        """Sum ``.grad`` of ``parameters`` over all drafters, in place; None counts as zero.

        Returns every drafter's ``record``, in rank order. All drafters call it at the same points.

        Raises:
            PeerFailed: another drafter has gone; its own failure is the cause.
        """
        ...


class Alone:
    """One drafter: there is nothing to sum."""

    rank, size = 0, 1

    async def reduce(self, parameters: Sequence[nn.Parameter], record: Record) -> list[Record]:
        for one in parameters:
            if one.grad is None:
                # As in a sum over several: an optimizer takes no step where there is no gradient.
                one.grad = torch.zeros_like(one)
        return [record]


@dataclass
class ChannelGroup:
    """Drafters that share a process: each sends its gradient to all others, and sums in rank order."""

    rank: int
    size: int
    inbox: Receiver[Any]
    outboxes: list[Sender[Any]]
    """to the others, without itself"""
    _turn: int = 0
    _early: dict[tuple[int, int], Any] = field(default_factory=dict)

    async def reduce(self, parameters: Sequence[nn.Parameter], record: Record) -> list[Record]:
        mine = flatten(parameters)
        parts: dict[int, tuple[Tensor, Record]] = {self.rank: (mine, record)}
        with span("barrier"):
            for outbox in self.outboxes:
                await outbox.send((self.rank, self._turn, mine, record))
            for rank in range(self.size):
                if rank != self.rank:
                    parts[rank] = await self._from(rank)
        self._turn += 1
        unflatten(_sum([parts[rank][0] for rank in range(self.size)]), parameters)
        return [parts[rank][1] for rank in range(self.size)]

    async def _from(self, rank: int) -> Any:
        """A drafter that is ahead may send its next part before another one has sent this one."""
        while (rank, self._turn) not in self._early:
            sender, turn, *part = await self.inbox.receive()
            self._early[sender, turn] = tuple(part)
        return self._early.pop((rank, self._turn))


class DistributedGroup:
    """Drafters in processes of their own: a torch.distributed group, gloo on a CPU and NCCL on CUDA.

    Args:
        port: of the store on this host through which the processes find each other.
    """

    def __init__(self, rank: int, size: int, port: int, device: torch.device) -> None:
        from torch import distributed

        self.rank, self.size = rank, size
        self._on_cpu = device.type == "cpu"
        # Else gloo listens where the host's name leads to; all drafters are on this host.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store = distributed.TCPStore("127.0.0.1", port, is_master=False)  # type: ignore[attr-defined]
        distributed.init_process_group(
            "gloo" if self._on_cpu else "cpu:gloo,cuda:nccl", store=store, rank=rank, world_size=size
        )

    async def reduce(self, parameters: Sequence[nn.Parameter], record: Record) -> list[Record]:
        from torch import distributed

        mine = flatten(parameters)
        records: list[Any] = [None] * self.size
        try:
            with span("barrier"):
                distributed.all_gather_object(records, record)
                if len(mine) and self._on_cpu:
                    parts = [torch.empty_like(mine) for _ in range(self.size)]
                    distributed.all_gather(parts, mine)
                    mine = _sum(parts)
                elif len(mine):
                    distributed.all_reduce(mine)
        except RuntimeError as error:
            raise PeerFailed(f"the reduction over {self.size} drafters broke: {error}") from error
        unflatten(mine, parameters)
        return records


def flatten(parameters: Sequence[nn.Parameter]) -> Tensor:
    """All gradients in one vector, a copy; zeros where there is none."""
    if not parameters:
        return torch.zeros(0)
    return torch.cat(
        [(torch.zeros_like(one) if one.grad is None else one.grad).detach().flatten() for one in parameters]
    )


def unflatten(vector: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    """Write such a vector back into the gradients."""
    start = 0
    for one in parameters:
        one.grad = vector[start : start + one.numel()].view_as(one)
        start += one.numel()


def _sum(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total
