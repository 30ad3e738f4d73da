"""What the pipeline itself costs: ratios within one run, so that they hold on any machine.

    python benchmarks/pipeline.py [start] [rates] [slots] [handoff] [memory] [training]

Prints a table for each part that is named, all of them if none is, and exits with 1 if a bound is missed.
Times of other processes count: it refuses nothing, but prints the load of the machine beside its figures.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))  # as every worker finds this folder's modules

import torch
from sleeping import Durations, Shape, durations, foretell, least_seconds, run_asleep

from dflash.config import Config, load_config
from dflash.pipeline import Receiver, Sender, open_engine
from dflash.pipeline.slots import Filled, Slots

MEAN_SECONDS = 0.05
FIRST = 4
"""windows that fill the pipeline and are not measured"""
Row = tuple[str, str, bool | None]
"""what, the figure, and whether it is within its bound; None where there is none"""


def rates(windows: int = 24) -> Iterator[Row]:
    """Sleeping stages beside the slower kind of stage by itself, and beside the recursion.

    The recursion has the same slots and barrier and no cost of its own: what is lost against it is the
    pipeline's doing. What it loses itself, by variation, is the topology's; the figures show both.
    """
    for targets, drafters in ((1, 1), (3, 1), (6, 2)):
        for slots in sorted({3, 3 + -(-targets // drafters)}):
            shape = Shape(targets, drafters, slots)
            for variation in (0.0, 0.5):
                seconds = durations(shape, windows, MEAN_SECONDS, variation, seed=1)
                for engine in ("thread", "process"):
                    yield _rate(engine, shape, windows, seconds, variation)


def _rate(engine: str, shape: Shape, windows: int, seconds: Durations, variation: float) -> Row:
    measured = run_asleep(engine, shape, windows, seconds)
    foretold, least = foretell(shape, seconds), least_seconds(shape, seconds, FIRST)
    took, ideal = measured[-1] - measured[FIRST - 1], foretold[-1] - foretold[FIRST - 1]
    name = f"{shape.targets}:{shape.drafters}, {shape.slots} slots, variation {variation:g}, {engine}"
    figure = (
        f"{least / took:.3f} of the slower stage's rate, where {least / ideal:.3f} is possible: "
        f"{ideal / took:.3f} of that"
    )
    return name, figure, ideal / took >= 0.97


# -- slots ------------------------------------------------------------------------------------------------


async def fill(outbox: Sender[Filled], free: Receiver[int], slots: Slots, nbytes: int, count: int) -> None:
    """Put one tensor into slots, over and over."""
    tensor = torch.ones(nbytes // 4)
    for turn in range(count):
        await free.receive()
        await outbox.send(slots.fill(turn, tensor))


async def drain(
    inbox: Receiver[Filled], free: Sender[int], outbox: Sender[float], slots: Slots, depth: int
) -> None:
    """Look at both ends of each, and give the slot back."""
    for turn in range(depth):
        await free.send(turn)
    async for filled in inbox:
        view = slots.read(filled, torch.device("cpu"))
        assert view[0] == view[-1] == 1
        await outbox.send(time.perf_counter())
        await free.send(0)


def through_slots(nbytes: int, count: int, depth: int = 3) -> list[float]:
    """When each of ``count`` tensors had come through slots to another process."""
    with open_engine("process") as pipeline:
        slots = pipeline.slots(depth, nbytes=nbytes)
        filled_tx, filled_rx = pipeline.channel("filled", items=depth)
        free_tx, free_rx = pipeline.channel("free", items=depth + 1)
        out_tx, out_rx = pipeline.channel("seen", items=depth)
        pipeline.start_apart("fill", fill, filled_tx, free_rx, slots, nbytes, count)
        pipeline.start_apart("drain", drain, filled_rx, free_tx, out_tx, slots, depth)
        return list(pipeline.results(out_rx))


def put_fresh(queue: Any, nbytes: int, count: int, taken: Any) -> None:
    """What a trainer without slots does: a new tensor for each micro-batch."""
    torch.set_num_threads(1)
    tensor = torch.ones(nbytes // 4)
    for _ in range(count):
        queue.put(tensor.clone())
    taken.wait()  # shared memory goes with the process that made it


def through_queue(nbytes: int, count: int) -> list[float]:
    """When each of ``count`` fresh tensors had come through a queue of torch.multiprocessing."""
    context: Any = torch.multiprocessing.get_context("forkserver")
    queue, taken = context.Queue(3), context.Event()
    process = context.Process(target=put_fresh, args=(queue, nbytes, count, taken), daemon=True)
    process.start()
    times = []
    for _ in range(count):
        tensor = queue.get()
        assert tensor[0] == tensor[-1] == 1
        times.append(time.perf_counter())
        del tensor
    taken.set()
    process.join()
    return times


def slots(nbytes: int = 50_000_000, count: int = 40) -> Iterator[Row]:
    """Slots beside fresh tensors in a queue, for 50 MB."""
    ring = _median_gap(through_slots(nbytes, count))
    queue = _median_gap(through_queue(nbytes, count))
    yield (
        "50 MB to another process",
        f"slots {ring * 1e3:.1f} ms, fresh ones in torch's queue {queue * 1e3:.1f} ms: {queue / ring:.1f}x",
        queue / ring >= 5,
    )


def _median_gap(times: list[float]) -> float:
    return statistics.median(later - earlier for earlier, later in pairwise(times[3:]))


# -- channels, workers, memory --------------------------------------------------------------------------


async def send_all(outbox: Sender[int], count: int) -> None:
    """Items that are worth nothing."""
    for number in range(count):
        await outbox.send(number)


def hand_over(engine: str, count: int, capacity: int) -> float:
    """Seconds for ``count`` items from one stage to the caller."""
    with open_engine(engine) as pipeline:
        sender, receiver = pipeline.channel("items", items=capacity)
        started = time.perf_counter()
        pipeline.start("send_all", send_all, sender, count)
        assert sum(1 for _ in pipeline.results(receiver)) == count
        return time.perf_counter() - started


def handoff(count: int = 20_000) -> Iterator[Row]:
    """One item from a thread to another."""
    for capacity in (1, 3, 16):
        each = statistics.median(hand_over("thread", count, capacity) for _ in range(3)) / count
        yield f"an item to another thread, room for {capacity}", f"{each * 1e6:.1f} us", each < 50e-6


async def be_there(outbox: Sender[float]) -> None:
    """The first that a worker does."""
    await outbox.send(time.perf_counter())


def starts(workers: int = 4) -> list[float]:
    """Seconds until each of several workers, one after the other, runs its stage."""
    with open_engine("process") as pipeline:
        sender, receiver = pipeline.channel("there", items=1)
        seconds = []
        for number in range(workers):
            began = time.perf_counter()
            pipeline.start_apart(f"worker-{number}", be_there, sender.clone())
            seconds.append(pipeline.run(receiver.receive()) - began)
        return seconds


def start() -> Iterator[Row]:
    """A worker is a fork of a server that has torch loaded; the first has to wait for that."""
    first, *others = starts()
    yield "the first worker runs after", f"{first:.2f} s", None
    yield "each one after it", f"{max(others):.2f} s at most", max(others) < 1


def proportional_bytes(pid: int | str = "self") -> int:
    """Memory of a process, pages that it shares counted by its part (PSS).

    Without those of files: their part changes with whoever else on this machine uses the same libraries.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:"))]
    return sum(kilobytes) * 1024


def memory_over(batches: int, looks: int = 5) -> list[int]:
    """PSS of this process and its workers at equal distances over so many micro-batches."""
    import multiprocessing

    shape = Shape(1, 1, 3)
    found: list[int] = []
    windows = batches // shape.window
    # Not at the very end, where the target's worker may have gone already.
    when = {windows * (place + 1) // (looks + 1) for place in range(looks)}

    def look(number: int) -> None:
        if number in when:
            pids = ["self", *(str(child.pid) for child in multiprocessing.active_children())]
            found.append(sum(proportional_bytes(pid) for pid in pids))

    run_asleep("process", shape, windows, None, each=look)
    return found


def memory(batches: int = 10_000) -> Iterator[Row]:
    """PSS must not grow with micro-batches; the first sixth is for what is made once."""
    found = memory_over(batches)
    growth = (found[-1] - found[0]) / (batches * (len(found) - 1) / (len(found) + 1)) * 1000
    sizes = ", ".join(f"{one / 1e6:.1f}" for one in found)
    yield (
        f"PSS over {batches:,} micro-batches",
        f"{sizes} MB: {growth / 1e3:.0f} kB per 1,000",
        growth < 0.5e6,
    )


# -- training -------------------------------------------------------------------------------------------


def training(windows: int = 30, warmup: int = 6) -> Iterator[Row]:
    """Real tokens per second on the sample with `bucketed`, beside the inline engine in the same run."""
    config = load_config(None, (f"training.windows={windows}", "data.held_out_samples=1"))
    speeds: dict[str, list[float]] = {engine: [] for engine in ("inline", "thread", "process")}
    for _ in range(2):
        for engine, found in speeds.items():
            found.append(real_tokens_per_second(config, engine, windows, warmup))
    best = {engine: max(found) for engine, found in speeds.items()}
    for engine in ("thread", "process"):
        ratio = best[engine] / best["inline"]
        yield (
            f"training on {engine}",
            f"{best[engine]:,.0f} real tok/s, inline {best['inline']:,.0f}: {ratio:.2f}x",
            ratio >= 1.3,
        )


def real_tokens_per_second(config: Config, engine: str, windows: int, warmup: int) -> float:
    """Between the commits of window ``warmup - 1`` and of the last."""
    import msgspec

    from dflash.data.sources import open_store
    from dflash.training.models import ModelsApart, load_models
    from dflash.training.plans import plan_run
    from dflash.training.run import training_run
    from dflash.training.schedule import in_training_order
    from dflash.training.step import WindowResult

    pipeline = msgspec.structs.replace(config.pipeline, engine=engine)
    config = msgspec.structs.replace(config, pipeline=pipeline)
    store = open_store(config.data)
    plans = plan_run(config, store)
    staff = ModelsApart(config) if engine == "process" else load_models(config, store)
    work = in_training_order(plans.training_windows(), [], [])
    with training_run(config, store, staff, work, plans.total) as run:
        results = [result for result in run.results if isinstance(result, WindowResult)]
    measured = results[warmup:]
    tokens = sum(result.counts.real_tokens for result in measured)
    return tokens / (measured[-1].committed_at - results[warmup - 1].committed_at)


PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    "start": start,  # first, while there is no server to fork from
    "rates": rates,
    "slots": slots,
    "handoff": handoff,
    "memory": memory,
    "training": training,
}


def main(names: list[str]) -> int:
    """Run the parts that are named, or all, and return the exit code."""
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        print(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    missed = 0
    for name in names or PARTS:
        print(f"{name}: load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores")
        for what, figure, good in PARTS[name]():
            mark = {True: "ok", False: "MISSED", None: ""}[good]
            print(f"  {what:48}  {figure}  {mark}", flush=True)
            missed += good is not None and not good
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
