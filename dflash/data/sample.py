"""The ``sample`` data set: this Python's standard library as a token store, with a tokenizer and a target.

Nothing is downloaded: the text is on every machine, tokenizer and target are in the package. The store is
prepared once into the user's cache; ``DFLASH_CACHE`` names another directory for it.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash.data.corpus import SourceFunction, held_out, library_functions
from dflash.data.store import StoreSample, TokenStore, write_store
from dflash.errors import UsageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT, PAD, MASK = "<|endoftext|>", "<|pad|>", "<|mask|>"
MIN_TOKENS, MAX_TOKENS = 16, 1024

_FORMAT = 1


def sample_target_dir() -> Path:
    """Directory of the sample target: config.json, model.safetensors, the tokenizer's files and card.json."""
    return Path(str(resources.files("dflash.data") / "sample"))


def sample_tokenizer() -> Tokenizer:
    """The sample tokenizer: byte-level BPE, with END_OF_TEXT, PAD and MASK as special tokens."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(sample_target_dir() / "tokenizer.json"))


def sample_store_path() -> Path:
    """Where this Python's sample store is, or will be: one for each Python version, tokenizer and format."""
    import platformdirs

    cache = os.environ.get("DFLASH_CACHE") or platformdirs.user_cache_dir("dflash")
    tokenizer = hashlib.sha256((sample_target_dir() / "tokenizer.json").read_bytes()).hexdigest()[:12]
    return Path(cache, f"sample-python{platform.python_version()}-{tokenizer}-v{_FORMAT}.arrow")


def prepare_sample(progress: Callable[[str], None] | None = None) -> Path:
    """Return the path of the sample token store, written first (some seconds) if it is not there, or damaged.

    ``progress`` gets a line for a person before and after the work, and none when there is nothing to do.
    Raises UsageError if the cache cannot be written or this Python ships no source.
    """
    path = sample_store_path()
    try:
        TokenStore.open(path).verify()
    except UsageError:
        pass
    else:
        return path
    say = progress or (lambda _line: None)
    say(f"preparing the sample: the standard library of Python {platform.python_version()} -> {path}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{path.parent}: cannot make the cache ({error.strerror}); set DFLASH_CACHE to another directory"
        ) from error
    metadata: dict[str, Any] = {}
    write_store(path, _samples(sample_tokenizer(), library_functions(), metadata), metadata)
    left_out = ", ".join(f"{n} {why.replace('_', ' ')}" for why, n in metadata["left_out"].items())
    say(f"{metadata['samples']} samples, {metadata['tokens']} tokens; left out: {left_out}")
    return path


def _samples(
    tokenizer: Tokenizer, functions: Iterable[SourceFunction], metadata: dict[str, Any]
) -> Iterator[StoreSample]:
    """Yield the samples in order, and at the end note in ``metadata`` what they are and what was left out."""
    end_of_text = tokenizer.token_to_id(END_OF_TEXT)
    left_out = {"duplicate": 0, "no_valid_anchor": 0, "too_short": 0, "too_long": 0}
    seen: set[str] = set()
    kept, kept_held_out, tokens = 0, 0, 0
    for function in functions:
        text = function.prompt + function.response
        if text in seen:
            left_out["duplicate"] += 1
            continue
        seen.add(text)
        # Encoded apart, as a prompt is at decode time: no token spans prompt and response.
        prompt = tokenizer.encode(function.prompt, add_special_tokens=False).ids
        response = [*tokenizer.encode(function.response, add_special_tokens=False).ids, end_of_text]
        length = len(prompt) + len(response)
        if len(response) < 2:
            left_out["no_valid_anchor"] += 1
        elif length < MIN_TOKENS:
            left_out["too_short"] += 1
        elif length > MAX_TOKENS:
            # Cut ones would pile up at the limit and end nowhere; the tail is natural without them.
            left_out["too_long"] += 1
        else:
            apart = held_out(function.module)
            kept, kept_held_out, tokens = kept + 1, kept_held_out + apart, tokens + length
            mask = [0] * len(prompt) + [1] * len(response)
            yield StoreSample(prompt + response, mask, f"{function.module}:{function.name}", apart)
    metadata.update(
        data="sample",
        python=platform.python_version(),
        pad_id=tokenizer.token_to_id(PAD),
        mask_id=tokenizer.token_to_id(MASK),
        samples=kept,
        held_out=kept_held_out,
        tokens=tokens,
        left_out=left_out,
    )
