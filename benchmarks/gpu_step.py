"""One training step of a drafter for Qwen3-8B on a GPU: is flex right, how long, how much memory, what MFU.

    python benchmarks/gpu_step.py [--context 16384] [--documents 8] [--blocks 512]

Needs one CUDA device with some 40 GB and takes less than three minutes. A step is what training does with a
micro-batch: encode the context, draft in bf16 over fp32 weights, cross-entropy through the target's head,
backward, AdamW. Weights and features are random, as speed does not depend on them.
``--device cpu --tiny`` runs the same code at toy sizes, to rehearse it where there is no GPU.
"""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import click
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dflash.config import DrafterSettings, OptimizerSettings
from dflash.models.anchors import build_slots
from dflash.models.attention import BlockAttention, backend_for, prepare_attention
from dflash.models.drafter import Drafter, TargetHead
from dflash.models.features import FeatureBatch
from dflash.models.loss import block_loss
from dflash.models.shape import DrafterShape
from dflash.training.micro_batch import add_gradient
from dflash.training.optimizer import Optimizer

QWEN3_8B = DrafterShape(
    hidden_size=4096,
    intermediate_size=12_288,
    layers=5,
    heads=32,
    kv_heads=8,
    head_dim=128,
    vocab_size=151_936,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    block_size=16,
    mask_token_id=151_669,
    target_layers=36,
    target_layer_ids=(1, 9, 17, 25, 33),
)
TINY = DrafterShape(
    hidden_size=64,
    intermediate_size=96,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    vocab_size=512,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    block_size=16,
    mask_token_id=511,
    target_layers=8,
    target_layer_ids=(1, 3, 5),
)
PEAK_TFLOPS = {"H200": 989, "H100": 989, "H800": 989, "A100": 312, "A800": 312, "B200": 2250, "L40S": 362}
"""Dense bf16, from the vendor's data sheets (SXM modules)."""
ENOUGH_SECONDS = 120
"""No further step is started after so long."""


@dataclass(frozen=True)
class Places:
    """Where the blocks of a micro-batch stand."""

    document_N: NDArray[np.int64]
    position_N: NDArray[np.int64]
    offsets_D: NDArray[np.int64]

    def attention(self, name: str, block_size: int, device: torch.device) -> BlockAttention:
        places = self.document_N, self.position_N, self.offsets_D
        return prepare_attention(name, *places, block_size, device)  # type: ignore[arg-type]


def draw_places(lengths: list[int], blocks: list[int]) -> Places:
    rng = np.random.default_rng(0)
    drawn = [
        np.sort(rng.choice(length - 1, n, replace=False)) for length, n in zip(lengths, blocks, strict=True)
    ]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Places(np.repeat(np.arange(len(lengths)), blocks), np.concatenate(drawn), offsets)


def disagreement(shape: DrafterShape, device: torch.device, dtype: torch.dtype) -> float:
    """Largest difference of the fast path from the fp64 reference, relative to a tensor's largest value.

    Of the output and the gradients of queries, context and own keys and values, over documents of unsorted
    lengths, with a number of block positions that no tile divides and an anchor at position 0.
    """
    places = draw_places([700, 37, 300, 129], [21, 3, 9, 4])
    places.position_N[0] = 0
    blocks, context = (len(places.document_N), shape.block_size), (int(places.offsets_D[-1]),)
    generator = torch.Generator().manual_seed(0)
    sizes = [(*blocks, shape.heads), *[(*context, shape.kv_heads)] * 2, *[(*blocks, shape.kv_heads)] * 2]
    inputs = [torch.randn(*size, shape.head_dim, generator=generator).to(device, dtype) for size in sizes]
    weight = torch.randn(inputs[0].shape, generator=generator).to(device, dtype)

    def run(name: str, exact: torch.dtype) -> list[Tensor]:
        leaves = [x.to(exact).requires_grad_() for x in inputs]
        out = places.attention(name, shape.block_size, device)(*leaves)
        return [out, *torch.autograd.grad((out * weight.to(exact)).sum(), leaves)]

    pairs = zip(run("auto", dtype), run("reference", torch.float64), strict=True)
    return max(((found - right).abs().max() / right.abs().max()).item() for found, right in pairs)


def training_flops(shape: DrafterShape, context: int, blocks: int, pairs: int, labels: int) -> int:
    """Floating-point operations of one forward and backward; a product of m x k by k x n has 2 m k n.

    Three times the forward's products, one for each of the two gradients of a product; twice where an
    input needs none: the target's features, and the frozen head. What is computed again going backward is
    not counted.

    Args:
        context, blocks: context positions and blocks.
        pairs: block positions times what each one sees, summed over all of them.
        labels: block slots that reach the head.
    """
    hidden, rows = shape.hidden_size, blocks * shape.block_size
    wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    per_row = 2 * hidden * (2 * wide + 2 * narrow + 3 * shape.intermediate_size)
    per_context = 2 * hidden * 2 * narrow
    attention = 2 * 2 * wide * pairs  # q k^T, and weights times v
    layers = shape.layers * (rows * per_row + context * per_context + attention)
    fuse = 2 * context * len(shape.target_layer_ids) * hidden * hidden
    head = 2 * labels * hidden * shape.vocab_size
    return 3 * layers + 2 * (fuse + head)


class Step:
    """A drafter, a micro-batch and an optimizer."""

    def __init__(self, shape: DrafterShape, places: Places, device: torch.device) -> None:
        torch.manual_seed(0)
        settings = DrafterSettings(compute_dtype="bfloat16", anchor_budget=1 << 30)
        with torch.device(device):
            self.drafter = Drafter(shape)
            features = len(shape.target_layer_ids) * shape.hidden_size
            tensors = [
                torch.randn(rows, width, dtype=torch.bfloat16) * width**-0.5
                for rows, width in [
                    (int(places.offsets_D[-1]), features),
                    (shape.vocab_size, shape.hidden_size),
                    (shape.vocab_size, shape.hidden_size),
                ]
            ]
        self.drafter.computing_as(settings)
        lengths = np.diff(places.offsets_D)
        slots = build_slots(
            [np.zeros(length, dtype=np.int64) for length in lengths],
            [np.ones(length, dtype=np.uint8) for length in lengths],
            np.split(places.position_N, np.flatnonzero(np.diff(places.document_N)) + 1),
            block_size=shape.block_size,
        )
        self.head = TargetHead(tensors[1], tensors[2])
        self.batch = FeatureBatch(tensors[0], places.offsets_D, np.arange(len(lengths)), slots)
        self._budget = settings.anchor_budget
        self._loss = block_loss(settings)
        self._optimizer = Optimizer(self.drafter.parameters(), OptimizerSettings(), total_windows=1000)

        within_NB = places.position_N[:, None] + shape.block_size
        self.flops = training_flops(
            shape,
            int(places.offsets_D[-1]),
            len(places.position_N),
            int(within_NB.sum()) * shape.block_size,
            int(slots.labelled_NB.sum()),
        )

    def __call__(self) -> float:
        """Train on the micro-batch; seconds, to the end of the device's work."""
        start = perf_counter()
        sums = add_gradient(self.drafter, self.head, self.batch, loss=self._loss, anchor_budget=self._budget)
        self._optimizer.commit(float(sums.weight))  # which waits for the device
        if self.batch.features_TF.is_cuda:
            torch.cuda.synchronize()
        return perf_counter() - start


def peak_memory(device: torch.device) -> int:
    """Bytes: most that tensors took on a GPU; on a CPU, most that the process did."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@click.command(help=__doc__ and __doc__.split("\n")[0])
@click.option("--device", default="cuda", show_default=True)
@click.option("--tiny", is_flag=True, help="Toy sizes, to rehearse the code.")
@click.option("--context", "-S", type=click.IntRange(64), default=16_384, show_default=True, help="Tokens.")
@click.option("--documents", type=click.IntRange(1), default=8, show_default=True)
@click.option("--blocks", "-N", type=click.IntRange(1), default=512, show_default=True)
@click.option("--steps", type=click.IntRange(1), default=10, show_default=True)
@click.option("--peak-tflops", type=float, help="Of an unknown device in bf16, for its MFU.")
def main(
    device: str, tiny: bool, context: int, documents: int, blocks: int, steps: int, peak_tflops: float | None
) -> None:
    if device.startswith("cuda") and not torch.cuda.is_available():
        print("gpu_step: no CUDA device here: rehearse with --device cpu --tiny", file=sys.stderr)
        raise SystemExit(2)
    started, place = perf_counter(), torch.device(device)
    shape = TINY if tiny else QWEN3_8B
    if tiny:
        context, documents, blocks = 512, 2, 24
    if not 1 <= blocks // documents < context // documents:
        raise click.UsageError("every document needs a block, and more tokens than blocks")
    name = torch.cuda.get_device_name(place) if place.type == "cuda" else "CPU"
    print(f"device     {name}, torch {torch.__version__}, attention {backend_for('auto', place)}")

    for dtype, allowed in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        found = disagreement(shape, place, dtype)
        verdict = "ok" if found <= allowed else "WRONG"
        print(f"check      {str(dtype)[6:]}: {found:.1e} off fp64, at most {allowed:.0e} allowed: {verdict}")
        if found > allowed:
            raise SystemExit(1)

    places = draw_places([context // documents] * documents, [blocks // documents] * documents)
    step = Step(shape, places, place)
    weights = sum(weight.numel() for weight in step.drafter.parameters())
    print(f"drafter    {weights / 1e6:,.1f} M weights, fp32, products in bf16")
    tokens = f"{places.offsets_D[-1]:,} tokens in {documents} documents"
    print(f"batch      {len(places.position_N)} blocks of {shape.block_size}, context of {tokens}")
    print(f"first step {step():.2f} s, with compilation")
    if place.type == "cuda":
        torch.cuda.reset_peak_memory_stats(place)
    seconds: list[float] = []
    while len(seconds) < steps and (not seconds or perf_counter() - started < ENOUGH_SECONDS):
        seconds.append(step())
    typical = median(seconds)
    rate = step.flops / typical
    peak = peak_tflops or next((peak for key, peak in PEAK_TFLOPS.items() if key in name), None)
    share = f", MFU {rate / peak / 1e12:.1%} of {peak:,.0f} TFLOP/s" if peak else ""
    print(f"step       {typical * 1e3:,.1f} ms, median of {len(seconds)} ({min(seconds) * 1e3:,.1f} at best)")
    print(f"work       {step.flops / 1e9:,.1f} GFLOP a step by formula: {rate / 1e9:,.1f} GFLOP/s{share}")
    print(f"memory     {peak_memory(place) / 2**30:,.2f} GiB at most")
    print(f"whole run  {perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
