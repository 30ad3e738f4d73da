"""Where features wait between a target and a drafter: a fixed ring of slots in memory that both can see.

Slots are numbered per drafter and used in turn: the feed reserves one for each micro-batch in plan order, and
the drafter frees them in the same order, so slot ``turn % count`` is free when its turn comes. What travels
through channels is a descriptor.
"""

from __future__ import annotations

import mmap
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from multiprocessing.reduction import DupFd
from typing import Any

import torch
from torch import Tensor

from dflash.errors import DflashError, UsageError
from dflash.memory import available_bytes
from dflash.pipeline.stage import span

ALIGNMENT = 64
"""bytes; a cache line"""


@dataclass(frozen=True)
class Filled:
    """What is in a slot. Plain values, except where the tensor itself can be handed over."""

    slot: int
    shape: tuple[int, ...]
    dtype: str
    tensor: Tensor | None = None


class Slots(ABC):
    """The slots of one drafter."""

    @abstractmethod
    def fill(self, turn: int, tensor: Tensor) -> Filled:
        """Put ``tensor`` where turn ``turn`` goes; the slot must be free."""

    @abstractmethod
    def read(self, filled: Filled, device: torch.device) -> Tensor:
        """The tensor on ``device``; valid until its slot is freed."""


class LocalSlots(Slots):
    """For stages that share a process: the tensor is handed over as it is, and nothing is copied."""

    def fill(self, turn: int, tensor: Tensor) -> Filled:
        return Filled(turn, tuple(tensor.shape), _name(tensor.dtype), tensor)

    def read(self, filled: Filled, device: torch.device) -> Tensor:
        assert filled.tensor is not None
        return filled.tensor.to(device)


class SlotRing(Slots):
    """``count`` slots of ``nbytes`` bytes in anonymous shared memory (memfd).

    It has no name, so none can collide or be left behind, and it is gone with the last process that has it.

    The memory is set aside at once, so that a machine too small says so here and not by a bus error later.

    Raises:
        UsageError: there is not so much memory.
    """

    def __init__(self, count: int, nbytes: int) -> None:
        self.count = count
        self.slot_bytes = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        total = count * self.slot_bytes
        left = available_bytes()
        if left is not None and total > left:
            # Asking the system would not do: it promises what it has not, and kills who takes it.
            raise UsageError(
                f"no memory for {count} slots of {self.slot_bytes:,} bytes, as {left:,} bytes are left: "
                "lower batching.token_budget or pipeline.depth"
            )
        self._descriptor = os.memfd_create("dflash-slots")
        os.posix_fallocate(self._descriptor, 0, total)
        self._map()

    def __reduce__(self) -> Any:
        return _attach, (DupFd(self._descriptor), self.count, self.slot_bytes)

    def __del__(self) -> None:
        # The mapping outlives the descriptor for as long as a tensor looks at it.
        if (descriptor := getattr(self, "_descriptor", None)) is not None:
            os.close(descriptor)

    def fill(self, turn: int, tensor: Tensor) -> Filled:
        nbytes = tensor.numel() * tensor.element_size()
        if nbytes > self.slot_bytes:
            raise DflashError(f"features of {nbytes:,} bytes do not fit into a slot of {self.slot_bytes:,}")
        filled = Filled(turn % self.count, tuple(tensor.shape), _name(tensor.dtype))
        with span("copy"):
            self._pin_for(tensor.device)
            self._view(filled).copy_(tensor)
        return filled

    def read(self, filled: Filled, device: torch.device) -> Tensor:
        view = self._view(filled)
        if device.type == "cpu":
            return view
        with span("copy"):
            self._pin_for(device)
            return view.to(device)

    def _map(self) -> None:
        mapping = mmap.mmap(self._descriptor, self.count * self.slot_bytes)
        self._bytes = torch.frombuffer(mapping, dtype=torch.uint8)
        self._pinned = False

    def _pin_for(self, device: torch.device) -> None:
        """Pin the memory where it is, once in each process: copies to and from a GPU need no staging then.

        Not before the first copy: until a process has loaded its model it must not touch CUDA.
        """
        if device.type == "cuda" and not self._pinned:
            cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            cudart.cudaHostRegister(self._bytes.data_ptr(), self._bytes.numel(), 0)
            self._pinned = True

    def _view(self, filled: Filled) -> Tensor:
        dtype = getattr(torch, filled.dtype)
        numel = 1
        for size in filled.shape:
            numel *= size
        start = filled.slot * self.slot_bytes
        part = self._bytes[start : start + numel * dtype.itemsize]
        return part.view(dtype).view(filled.shape)


def _attach(descriptor: Any, count: int, slot_bytes: int) -> SlotRing:
    ring = SlotRing.__new__(SlotRing)
    ring.count, ring.slot_bytes = count, slot_bytes
    ring._descriptor = descriptor.detach()
    ring._map()
    return ring


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
