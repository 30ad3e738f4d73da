"""`dflash prepare`: make a token store of any text, as it is or with the target's own responses."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from dflash.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from dflash.data.inputs import Source
    from dflash.data.prepare import Counts
    from dflash.data.prepare_progress import PrepareProgress
    from dflash.data.tokenisation import Tokenisation
    from dflash.data.tokenizer import TextTokenizer

_GENERATION = {
    "max_new_tokens": 1024,
    "temperature": 0.0,
    "seed": 0,
    "batch_size": 64,
    "device": "cpu",
    "dtype": "float32",
}
"""defaults of the options that say how --regenerate works"""


@click.command()
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option(
    "--tokenizer", required=True, metavar="DIR|sample", help="Folder of the target or its tokenizer."
)
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="STORE", help="File to make.")
@click.option("--overwrite", is_flag=True, help="Replace STORE if it exists.")
@click.option("--messages", metavar="FIELD", help="Field of a chat's messages.  [messages, conversations]")
@click.option("--prompt", metavar="FIELD", help="Field of a prompt.  [prompt]")
@click.option("--response", metavar="FIELD", help="Field of its response.  [response]")
@click.option("--text", metavar="FIELD", help="Field of a whole document.  [text]")
@click.option("--as-chat", is_flag=True, help="A prompt and its response are two messages of a chat.")
@click.option(
    "--template-arg",
    "template_arguments",
    multiple=True,
    metavar="NAME=VALUE",
    help="For the chat template, e.g. enable_thinking=false.",
)
@click.option(
    "--prompt-tokens",
    type=click.IntRange(1),
    metavar="N",
    help="The first N tokens of a document, or of a store's sample, are its prompt.",
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Read the first N rows only.")
@click.option("--skip-bad", is_flag=True, help="Leave rows out that cannot be read, instead of stopping.")
@click.option("--max-tokens", type=click.IntRange(2), metavar="N", help="Most tokens of a sample.")
@click.option(
    "--overlong",
    type=click.Choice(["cut", "drop"]),
    default="cut",
    show_default=True,
    help="What happens to longer samples.",
)
@click.option(
    "--min-supervised",
    type=click.IntRange(2),
    default=2,
    show_default=True,
    metavar="N",
    help="Drop samples with fewer supervised tokens.",
)
@click.option(
    "--held-out",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="Share kept from training.  [0.02; what a store holds out stays so]",
)
@click.option("--processes", type=click.IntRange(1), default=1, show_default=True, metavar="N")
@click.option("--regenerate", metavar="TARGET_DIR|sample", help="Replace responses by this target's own.")
@click.option("--max-new-tokens", type=click.IntRange(1), metavar="N", help="Of one response.  [1024]")
@click.option("--temperature", type=click.FloatRange(0), metavar="T", help="0 is greedy.  [0]")
@click.option("--seed", type=click.IntRange(0), metavar="N", help="For a temperature above 0.  [0]")
@click.option("--batch-size", type=click.IntRange(1), metavar="N", help="Responses made at once.  [64]")
@click.option("--device", metavar="DEVICE", help="Of the target.  [cpu]")
@click.option(
    "--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="Of the target.  [float32]"
)
def prepare(
    inputs: tuple[str, ...],
    tokenizer: str,
    out: Path,
    overwrite: bool,
    messages: str | None,
    prompt: str | None,
    response: str | None,
    text: str | None,
    as_chat: bool,
    template_arguments: tuple[str, ...],
    prompt_tokens: int | None,
    limit: int | None,
    skip_bad: bool,
    max_tokens: int | None,
    overlong: Any,
    min_supervised: int,
    held_out: float | None,
    processes: int,
    regenerate: str | None,
    **generation: Any,
) -> int:
    """Make a token store, the data that a drafter is trained on.

    An INPUT is a file (.jsonl, .parquet, .txt, a token store or another .arrow file), a folder of such
    files, a data set saved by Hugging Face's library, or the word 'sample'. A row is a chat (messages with
    role and content, put through the tokenizer's chat template; what the assistant says is supervised), a
    prompt with its response (which is supervised), or a whole document (supervised but for --prompt-tokens).

    \b
    dflash prepare chats.jsonl --tokenizer Qwen3-4B --out chats.arrow --max-tokens 3072
    dflash prepare data/ --tokenizer Qwen3-4B --prompt instruction --response output --as-chat --out s.arrow
    dflash prepare book.txt notes/ --tokenizer Qwen3-4B --out documents.arrow --processes 8

    A drafter learns best from text that its target would write. --regenerate keeps the prompts and replaces
    the responses by the target's own, a chat turn by turn. That takes long, so it can be interrupted: done
    rows are kept beside STORE, and the same command goes on after them.

    \b
    dflash prepare chats.jsonl --tokenizer Qwen3-4B --regenerate Qwen3-4B --device cuda --dtype bfloat16 \\
      --max-new-tokens 2048 --template-arg enable_thinking=false --out regenerated.arrow
    dflash prepare sample --tokenizer sample --regenerate sample --prompt-tokens 32 --max-new-tokens 128 \\
      --limit 2000 --out regenerated.arrow
    dflash train --set data.store=regenerated.arrow

    STORE appears when it is whole. Rows that are dropped or cut are counted, and listed in
    STORE.ledger.jsonl.
    """
    given = {name: value for name, value in generation.items() if value is not None}
    if given and regenerate is None:
        raise click.UsageError(f"--{next(iter(given)).replace('_', '-')} says how --regenerate works")
    if out.exists() and not overwrite:
        raise UsageError(f"{out} exists: give another --out, or --overwrite to replace it")
    # Before torch is imported: a process is one core's, whatever else runs on the machine.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MKL_NUM_THREADS", "1")
    from dflash.command_line import say
    from dflash.data.documents import Fields
    from dflash.data.inputs import open_inputs
    from dflash.data.rules import Rules
    from dflash.data.tokenisation import Tokenisation, Treatment
    from dflash.data.tokenizer import TextTokenizer
    from dflash.models.shape import MASK_TOKENS

    fields = Fields(messages, prompt, response, text, prompts_suffice=regenerate is not None)
    sources = open_inputs(inputs, fields, say)
    loaded = TextTokenizer.load(tokenizer, MASK_TOKENS)
    _refuse_foreign_stores(sources, loaded)
    treatment = Treatment(prompt_tokens, as_chat, _template_arguments(template_arguments))
    rules = Rules(max_tokens, overlong, min_supervised, held_out, loaded.mask_id)
    job = Tokenisation(loaded, treatment, rules)
    notes = {
        "data": "prepared",
        "pad_id": loaded.pad_id,
        "mask_id": loaded.mask_id,
        "tokenizer": loaded.digest,
        "inputs": [{"name": source.name, "bytes": source.size} for source in sources],
        "limit": limit,
        "treatment": msgspec.to_builtins(treatment),
        "rules": msgspec.to_builtins(rules),
    }
    running = {"processes": processes, "limit": limit, "skip_bad": skip_bad}
    _make_folder(out)
    if regenerate is None:
        return _tokenise(sources, job, out, notes, running)
    return _regenerate(sources, job, out, notes, running, regenerate, _GENERATION | given)


def _tokenise(
    sources: list[Source], job: Tokenisation, out: Path, notes: dict[str, Any], running: dict[str, Any]
) -> int:
    from dflash.command_line import say
    from dflash.data.prepare import prepare as prepare_store
    from dflash.data.prepare_progress import PrepareProgress

    with PrepareProgress(generated=False) as progress:
        try:
            counts = prepare_store(sources, job, out, notes, progress, **running)
        except KeyboardInterrupt:
            say(f"interrupted: nothing is kept, {out} was not written")
            return ExitCode.INTERRUPTED
    _report(out, counts, progress)
    return ExitCode.OK


def _regenerate(
    sources: list[Source],
    job: Tokenisation,
    out: Path,
    notes: dict[str, Any],
    running: dict[str, Any],
    target: str,
    options: dict[str, Any],
) -> int:
    import math

    from dflash.command_line import say
    from dflash.data.prepare import prepare as prepare_store
    from dflash.data.prepare_progress import PrepareProgress
    from dflash.data.sample import sample_target_dir
    from dflash.models.generation import Decoding
    from dflash.models.identity import identify
    from dflash.models.regeneration import Regeneration

    folder = sample_target_dir() if target == "sample" else Path(target)
    _refuse_foreign_tokenizer(job.tokenizer, folder)
    identity = identify(folder, math.nan)
    kept = out.with_name(f"{out.name}.regenerated")
    decoding = Decoding(**{name: options[name] for name in Decoding.__dataclass_fields__})
    regeneration = Regeneration(
        job.tokenizer,
        job.treatment,
        job.rules,
        str(folder),
        f"{identity.config_hash} {identity.weight_hash}",
        decoding,
        options["device"],
        options["dtype"],
        running["skip_bad"],
        str(kept),
    )
    notes["regenerated"] = {"target": asdict(identity), **options}
    with PrepareProgress(generated=True) as progress:
        try:
            counts = prepare_store(
                sources, regeneration, out, notes, progress, **running, chunk_rows=4 * decoding.batch_size
            )
        except KeyboardInterrupt:
            done = f"{progress.rows_kept:,} rows are done, and are kept in {kept}: the same command goes on"
            say(f"interrupted: {done if progress.rows_kept else 'nothing was done yet'}")
            return ExitCode.INTERRUPTED
    shutil.rmtree(kept, ignore_errors=True)
    _report(out, counts, progress)
    return ExitCode.OK


def _report(out: Path, counts: Counts, progress: PrepareProgress) -> None:
    from dflash.command_line import say
    from dflash.data.prepare import ledger_path, reasons

    say(progress.finished())
    say(
        f"{out}: {counts.samples:,} samples ({counts.held_out:,} held out), {counts.tokens:,} tokens, "
        f"{counts.supervised_tokens:,} supervised"
    )
    if counts.left_out or counts.cut:
        say(f"left out: {reasons(counts.left_out)}; cut: {reasons(counts.cut)}; listed in {ledger_path(out)}")


def _make_folder(out: Path) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {out.parent}: {error.strerror}") from error
    if out.is_dir():
        raise UsageError(f"{out} is a folder: give --out the name of a file")


def _template_arguments(texts: tuple[str, ...]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name.isidentifier() and equals):
            raise click.UsageError(f"--template-arg {text!r}: write it as NAME=VALUE")
        try:
            arguments[name] = json.loads(value)
        except ValueError:
            arguments[name] = value
    return arguments


def _refuse_foreign_stores(sources: list[Source], tokenizer: TextTokenizer) -> None:
    """Ids of another tokenizer are other words; the mask token tells most of them apart."""
    for source in sources:
        if source.store and source.store.metadata.get("mask_id", tokenizer.mask_id) != tokenizer.mask_id:
            raise UsageError(f"{source.path} was made with another tokenizer than {tokenizer.folder}")


def _refuse_foreign_tokenizer(tokenizer: TextTokenizer, target: Path) -> None:
    """A target answers any ids, but not sensibly ids that mean something else to it."""
    from dflash.data.tokenizer import TextTokenizer

    try:
        own = TextTokenizer.load(str(target))
    except UsageError:
        return  # a target may come without one; its vocabulary's size is checked when it runs
    if own.vocabulary != tokenizer.vocabulary:
        raise UsageError(
            f"{tokenizer.folder} and {target} have different vocabularies: give --tokenizer the latter"
        )
