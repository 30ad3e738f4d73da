"""What a machine has, what would be chosen for a run on it and why, and what stands in its way."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import torch

import dflash
from dflash.config import Config
from dflash.cores import cpu_quota, usable_cores
from dflash.data.sample import sample_store_path
from dflash.data.sources import target_folder
from dflash.data.store import TokenStore
from dflash.errors import UsageError
from dflash.memory import available_bytes
from dflash.models.attention.backends import backend_for
from dflash.models.drafter import Drafter
from dflash.models.shape import DrafterShape
from dflash.models.starting_point import drafter_shape
from dflash.plugin_manager import PluginManager
from dflash.training.placement import Placement, place

_LIBRARIES = ("torch", "transformers", "numpy", "numba")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
_BYTES_PER_WEIGHT = 16
"""of a drafter: the weight, its gradient and AdamW's two moments, in fp32 all of them"""


@dataclass(frozen=True)
class Problem:
    """What is wrong, in one line that ends with the way out."""

    text: str
    fatal: bool
    """whether the run that was asked for cannot work"""


@dataclass(frozen=True)
class Device:
    """A GPU."""

    name: str
    model: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Slots:
    """The memory in which features wait for their drafter: depth x budget x features x dtype x drafters."""

    drafters: int
    depth: int
    token_budget: int
    features: int
    """numbers per token: target layers x hidden size"""
    dtype: str

    @property
    def total_bytes(self) -> int:
        """Of all slots together."""
        itemsize: int = getattr(torch, self.dtype).itemsize
        return self.drafters * self.depth * self.token_budget * self.features * itemsize

    def __str__(self) -> str:
        return (
            f"{self.drafters} drafters x depth {self.depth} x {self.token_budget} tokens x {self.features} "
            f"features x {self.dtype} = {size(self.total_bytes)}"
        )


@dataclass
class Diagnosis:
    """What was found. Values are plain; bytes are bytes."""

    versions: dict[str, str]
    can_use: dict[str, bool]
    devices: list[Device]
    cores: int
    cpu_quota: float | None
    memory_left: int | None
    threads: dict[str, str | None]
    """settings of the environment; None where one is not set"""
    store: str = ""
    target: str = ""
    placement: Placement | None = None
    slots: Slots | None = None
    weights: dict[str, int] = field(default_factory=dict)
    """bytes, at least, of the weights and optimizers on each device"""
    problems: list[Problem] = field(default_factory=list)

    @property
    def works(self) -> bool:
        """Whether nothing is known that would stop the run."""
        return not any(problem.fatal for problem in self.problems)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """A usage error in the block is a fatal problem."""
        try:
            yield
        except UsageError as error:
            self._add(str(error), fatal=True)

    def _add(self, text: str, *, fatal: bool) -> None:
        self.problems.append(Problem(text, fatal))


def diagnose(config: Config) -> Diagnosis:
    """Look at this machine with a run of ``config`` in mind. Loads no model and writes nothing."""
    found = Diagnosis(
        versions=_versions(),
        can_use=_abilities(),
        devices=_devices(),
        cores=usable_cores(),
        cpu_quota=cpu_quota(),
        memory_left=available_bytes(),
        threads={name: os.environ.get(name) for name in _THREADS},
    )
    with found.noting():
        found.store = _store(config)
    with found.noting():
        PluginManager().arms(config.batching.strategy)
    with found.noting():
        found.placement = place(config.pipeline)
        backend_for(config.drafter.attention, torch.device(found.placement.drafters[0]))
    with found.noting():
        folder = target_folder(config.data)
        shape = drafter_shape(config, folder)
        found.target = f"{folder}, {shape.hidden_size} wide, features of layers {_listed(shape)}"
        found.slots = Slots(
            drafters=config.pipeline.drafters,
            depth=config.pipeline.depth,
            token_budget=config.batching.token_budget,
            features=len(shape.target_layer_ids) * shape.hidden_size,
            dtype=config.data.target_dtype,
        )
        if found.placement is not None:
            found.weights = _weights(config, folder, shape, found.placement)
    for problem in _problems(found):
        if problem.text not in [known.text for known in found.problems]:
            found.problems.append(problem)
    return found


def size(nbytes: int) -> str:
    """Bytes for a person."""
    for unit, one in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= one:
            return f"{nbytes / one:.3g} {unit}"
    return f"{nbytes} B"


def _versions() -> dict[str, str]:
    ours = {"dflash": dflash.__version__, "python": platform.python_version()}
    return ours | {name: metadata.version(name) for name in _LIBRARIES}


def _abilities() -> dict[str, bool]:
    distributed = torch.distributed.is_available()
    cuda = torch.cuda.is_available()
    return {
        "CUDA": cuda,
        "flex attention": cuda,
        "gloo": distributed and torch.distributed.is_gloo_available(),
        "NCCL": distributed and torch.distributed.is_nccl_available(),
        "shared memory without a name": hasattr(os, "memfd_create"),
    }


def _devices() -> list[Device]:
    devices = []
    for number in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(number)
        devices.append(Device(f"cuda:{number}", torch.cuda.get_device_name(number), total, free))
    return devices


def _store(config: Config) -> str:
    sample = config.data.store == "sample"
    path = sample_store_path() if sample else Path(config.data.store)
    if sample and not path.exists():
        return f"sample, made at its first use in {path}"
    store = TokenStore.open(path)
    held_out = len(store.rows(held_out=True))
    return f"{path}, {len(store):,} samples of {int(store.lengths.sum()):,} tokens, {held_out:,} held out"


def _weights(config: Config, folder: Path, shape: DrafterShape, placement: Placement) -> dict[str, int]:
    itemsize: int = getattr(torch, config.data.target_dtype).itemsize
    target = _numbers_in(folder) * itemsize
    with torch.device("meta"):
        drafter = sum(weight.numel() for weight in Drafter(shape).parameters()) * _BYTES_PER_WEIGHT
    needed: dict[str, int] = {}
    for device in placement.targets:
        needed[device] = needed.get(device, 0) + target
    for device in placement.drafters:
        needed[device] = needed.get(device, 0) + drafter
    return needed


def _numbers_in(folder: Path) -> int:
    """Numbers in a model's safetensors files, by their headers (8 bytes of length, then JSON)."""
    total = 0
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for name, tensor in header.items():
            if name != "__metadata__":
                count = 1
                for length in tensor["shape"]:
                    count *= length
                total += count
    return total


def _listed(shape: DrafterShape) -> str:
    return ", ".join(map(str, shape.target_layer_ids))


def _problems(found: Diagnosis) -> Iterator[Problem]:
    if found.placement is not None:
        yield from _of_memory(found, found.placement)
        yield from _of_group(found, found.placement)
        yield from _of_sharing(found, found.placement)
    threads = found.threads["OMP_NUM_THREADS"]
    if threads not in (None, "1"):
        yield Problem(
            f"OMP_NUM_THREADS={threads}, but every worker computes in one thread, and idle ones only take "
            "time: unset it",
            fatal=False,
        )


def _of_memory(found: Diagnosis, placement: Placement) -> Iterator[Problem]:
    free = {device.name: device.free_bytes for device in found.devices}
    left = found.memory_left
    needed = dict(found.weights)
    if placement.engine == "process" and found.slots is not None:
        if left is not None and found.slots.total_bytes > left:
            yield Problem(
                f"slots take {size(found.slots.total_bytes)} of memory and {size(left)} are left: lower "
                "batching.token_budget or pipeline.depth",
                fatal=True,
            )
            return
        needed["cpu"] = needed.get("cpu", 0) + found.slots.total_bytes
    for device, nbytes in needed.items():
        have = left if device == "cpu" else free.get(device)
        if have is not None and nbytes > have:
            yield Problem(
                f"{device} needs at least {size(nbytes)} for weights, optimizers and slots, and {size(have)} "
                "are left: fewer workers, or data.target_dtype=bfloat16",
                fatal=True,
            )


def _of_group(found: Diagnosis, placement: Placement) -> Iterator[Problem]:
    """Several drafters in processes need a way to sum."""
    if placement.engine != "process":
        return
    if not found.can_use["shared memory without a name"]:
        yield Problem("this system has no memfd_create: take pipeline.engine=thread", fatal=True)
    if len(placement.drafters) == 1:
        return
    on_cuda = [device for device in placement.drafters if device != "cpu"]
    for backend in ("gloo", "NCCL") if on_cuda else ("gloo",):
        if not found.can_use[backend]:
            yield Problem(
                f"this torch has no {backend}, by which several drafters sum their gradients: take one "
                "drafter, or pipeline.engine=thread",
                fatal=True,
            )
    for device in sorted({one for one in on_cuda if on_cuda.count(one) > 1}):
        yield Problem(
            f"{on_cuda.count(device)} drafters share {device}, but NCCL wants a GPU for each: fewer "
            "drafters, or pipeline.engine=thread",
            fatal=True,
        )


def _of_sharing(found: Diagnosis, placement: Placement) -> Iterator[Problem]:
    workers = [*placement.targets, *placement.drafters]
    cores = min(found.cores, found.cpu_quota or found.cores)
    on_cpu = workers.count("cpu")
    if on_cpu > cores:
        yield Problem(
            f"{on_cpu} workers take turns on {cores:g} cores: right, but no faster than {cores:g} workers",
            fatal=False,
        )
    idle = [device.name for device in found.devices if device.name not in workers]
    if idle:
        yield Problem(
            f"nobody works on {', '.join(idle)}: --topology N:M with N + M = {len(found.devices)} uses all",
            fatal=False,
        )
