"""`dflash export`: a trained drafter as servers load it."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="New folder.")
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float32"]),
    default="bfloat16",
    show_default=True,
    help="Type of the tensors; released drafters are bfloat16.",
)
@click.option(
    "--target",
    metavar="DIR|sample",
    help="The target, if it has moved or the checkpoint does not tell enough of it.",
)
@click.option("-v", "--list", "listing", is_flag=True, help="Print every key with its shape and type.")
def export(checkpoint: Path, out: Path, dtype: str, target: str | None, listing: bool) -> None:
    """Write a drafter as z-lab's class, SGLang and vLLM load it.

    CHECKPOINT is the folder of a run of `dflash train`, or a folder with a drafter. The new folder gets
    config.json and model.safetensors. Everything that a server would skip without a word is checked first:
    keys, shapes, types, finite values, layer ids, mask token.

    \b
    dflash export runs/20260101-120000 --out my-drafter
    dflash export runs/20260101-120000 --out my-drafter-fp32 --dtype float32 --list
    """
    import torch

    from dflash.config import DataSettings
    from dflash.data.sources import target_folder
    from dflash.models.export import export_drafter, read_drafter, tensors_in
    from dflash.models.published_config import read_config, serving_facts
    from dflash.models.starting_point import check_target

    drafter = read_drafter(checkpoint)
    facts = read_config(checkpoint).facts()
    if target is not None:
        folder = target_folder(DataSettings(target=target))
        check_target(drafter.shape, checkpoint, folder)
        facts = serving_facts(folder)
    if facts.max_position_embeddings is None:
        raise click.UsageError(f"{checkpoint} does not say how long a text may be: give its --target")
    export_drafter(out, drafter, facts, getattr(torch, dtype))

    tensors = tensors_in(out)
    for tensor in tensors if listing else []:
        click.echo(f"{tensor.name:48} {tensor.dtype:5} {list(tensor.shape)}")
    parameters = sum(tensor.parameters for tensor in tensors)
    size = (out / "model.safetensors").stat().st_size
    click.echo(f"{len(tensors)} tensors, {parameters:,} parameters, {size:,} bytes of {dtype} in {out}")
