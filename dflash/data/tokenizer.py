"""A target's tokenizer as the preparation of data needs it: nothing cut, nothing added unasked."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dflash.data.sample import sample_target_dir
from dflash.errors import UsageError

Ids = list[int]
Offsets = list[tuple[int, int]]


class TextTokenizer:
    """Text to ids and back. Load one with ``TextTokenizer.load``.

    It can be sent to other processes, which then have no need of transformers, but for chat templates.

    ``vocabulary``      id of each token
    ``size``            ids are below it
    ``special_tokens``  added ones that are no text, ``special_ids`` theirs
    ``eos_id``          ends a document or a turn; None if the tokenizer has no such token
    ``pad_id``          for padding in micro-batches
    ``mask_id``         of the token that stands for 'not drafted yet'; None if the tokenizer has none
    ``digest``          SHA-256 (hex) over all that decides what text becomes, the chat template included
    """

    def __init__(self, hub: Any, folder: Path, mask_tokens: Sequence[str]) -> None:
        self.folder = folder
        self._hub = hub
        self._backend = hub.backend_tokenizer
        # A tokenizer.json may ask for both, and would cut every long text without a word.
        self._backend.no_truncation()
        self._backend.no_padding()
        self.vocabulary: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        self.size = max(self.vocabulary.values()) + 1
        self.eos_id: int | None = hub.eos_token_id
        self.mask_id = next((self.vocabulary[name] for name in mask_tokens if name in self.vocabulary), None)
        pad = hub.pad_token_id if hub.pad_token_id is not None else self.eos_id
        self.pad_id: int = 0 if pad is None else pad
        special = {id_: token.content for id_, token in hub.added_tokens_decoder.items() if token.special}
        self.special_ids = frozenset(special)
        self.special_tokens = tuple(special.values())
        decisive = [self._backend.to_str(), repr(hub.chat_template), repr(hub.special_tokens_map)]
        self.digest = hashlib.sha256("\0".join(decisive).encode()).hexdigest()

    @classmethod
    def load(cls, where: str, mask_tokens: Sequence[str] = ()) -> TextTokenizer:
        """Load from a local folder, or the shipped one for ``sample``. Nothing is downloaded, no code run.

        Args:
            mask_tokens: texts of the mask token, the first one known is taken.

        Raises:
            UsageError: the folder holds no tokenizer, or one without a fast version.
        """
        folder = sample_target_dir() if where == "sample" else Path(where)
        if not folder.is_dir():
            raise UsageError(f"{folder}: no such folder; give the folder of a tokenizer, or 'sample'")
        return cls(_load_hub(folder), folder, mask_tokens)

    @property
    def hub(self) -> Any:
        """The tokenizer of transformers, for chat templates."""
        if self._hub is None:
            self._hub = _load_hub(self.folder)
        return self._hub

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_hub": None}

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of each text and of nothing else: special tokens only where the text spells them out."""
        encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_openings(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of texts that begin a sample: with the beginning token of tokenizers that have one."""
        encodings = self._backend.encode_batch_fast(texts, add_special_tokens=True)
        return [_without_end(encoding.ids, self.eos_id) for encoding in encodings]

    def encode_with_offsets(self, text: str) -> tuple[Ids, Offsets]:
        """As :meth:`encode`, and the span of characters of each id."""
        encoding = self._backend.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def decode(self, ids: Ids) -> str:
        """The text of ids, special tokens spelled out."""
        text: str = self._backend.decode(ids, skip_special_tokens=False)
        return text


def _without_end(ids: Ids, eos_id: int | None) -> Ids:
    return ids[:-1] if len(ids) > 1 and ids[-1] == eos_id else ids


def _load_hub(folder: Path) -> Any:
    # Its threads and a fork of the process that has used them have deadlocked many a preparation. Ours are
    # fresh processes, and each is one thread.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity(logging.CRITICAL)  # it reports in many lines what is refused here in one
    try:
        hub = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the tokenizers' own errors are of no narrower class
        reason = str(error).strip().partition("\n")[0].rstrip(".: ")
        raise UsageError(f"{folder} holds no tokenizer that can be loaded ({reason})") from error
    if not hub.is_fast:
        raise UsageError(f"{folder} has no fast tokenizer: save one that has a tokenizer.json")
    return hub
