"""`dflash evaluate`: what a drafter is worth when it decodes."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import click

CHECKED = 8


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--target", default="sample", show_default=True, help="Folder of the target, or 'sample'.")
@click.option(
    "--data", default="sample", show_default=True, metavar="STORE", help="A token store, or 'sample'."
)
@click.option(
    "--prompts",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="Held-out samples to decode, spread over the lengths.",
)
@click.option(
    "--prompt-tokens",
    type=click.IntRange(1),
    help="Tokens of a sample that are its prompt.  [default: those before the first supervised one, or 32]",
)
@click.option("--max-new-tokens", type=click.IntRange(1), default=128, show_default=True)
@click.option(
    "--temperature",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="0 is greedy; above it, rejection sampling.",
)
@click.option(
    "--check",
    type=click.IntRange(0),
    help=f"Prompts, from the first, to decode plainly as well and compare.  [default: {CHECKED}; sampled: 0]",
)
@click.option("--device", default="cpu", show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of sampling.")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Write the figures as JSON ('-': stdout)."
)
def evaluate(
    checkpoint: Path,
    target: str,
    data: str,
    prompts: int,
    prompt_tokens: int | None,
    max_new_tokens: int,
    temperature: float,
    check: int | None,
    device: str,
    seed: int,
    json_file: Path | None,
) -> int:
    """Decode held-out prompts with a drafter and count what the target accepts.

    CHECKPOINT is a drafter's folder (config.json and model.safetensors), for instance runs/x/drafter. Every
    length counts the token that the target adds itself, so 1 is a drafter that is worth nothing. Greedy text
    is held against plain decoding, and its lengths against those of teacher forcing at the same anchors: exit
    3 if either differs. Ctrl-C keeps the responses that are whole.

    \b
    dflash evaluate runs/x/drafter
    dflash evaluate runs/x/drafter --prompts 64 --temperature 1 --json figures.json
    """
    if not math.isfinite(temperature):
        raise click.UsageError(f"--temperature {temperature} is no temperature")
    if temperature and check:
        raise click.UsageError("--check compares greedy text only: leave it out, or set --temperature 0")
    # Before torch is imported: idle OpenMP threads would spin.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MKL_NUM_THREADS", "1")
    import msgspec

    from dflash.training.evaluation import EvaluationRequest, evaluate_drafter
    from dflash.training.evaluation_report import show

    found = evaluate_drafter(
        EvaluationRequest(
            checkpoint=checkpoint,
            target=target,
            data=data,
            prompts=prompts,
            prompt_tokens=prompt_tokens,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            checked=(0 if temperature else CHECKED) if check is None else check,
            device=device,
            seed=seed,
        )
    )
    if json_file != Path("-"):
        show(found)
    if json_file is not None:
        _write(json_file, msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    return found.exit_code


def _write(path: Path, content: bytes) -> None:
    from dflash.errors import UsageError

    if path == Path("-"):
        sys.stdout.buffer.write(content)
        return
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
