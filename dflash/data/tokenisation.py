"""From rows to samples: the tokenizer's part of the work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from dflash.data.conversation import ChatTemplate, Sample, Turns
from dflash.data.documents import Bad, Chat, Content, Pair, Row, Text, Tokens
from dflash.data.rules import Outcome, Rules, bad
from dflash.data.tokenizer import Ids, TextTokenizer
from dflash.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Treatment(msgspec.Struct, frozen=True):
    """How rows become samples.

    ``prompt_tokens``       so many tokens at the head of a document, or of a token store's sample, are its
                            prompt and not supervised. None: a document is supervised as a whole, and a token
                            store's sample as it is
    ``pairs_as_chats``      a prompt and its response are two messages of a chat
    ``template_arguments``  are given to the chat template
    """

    prompt_tokens: int | None = None
    pairs_as_chats: bool = False
    template_arguments: dict[str, Any] = {}


class RowTokenizer:
    """Makes samples of rows, or the turns of samples whose responses are made anew."""

    def __init__(self, tokenizer: TextTokenizer, treatment: Treatment) -> None:
        self._tokenizer = tokenizer
        self._treatment = treatment

    def samples(self, rows: Sequence[Row]) -> list[Sample | str]:
        """The sample of each row, or what is wrong with the row.

        Prompt and response are encoded apart, as a prompt is at decode time: no token spans both.
        """
        contents = [self._as_chat(row.content) for row in rows]
        # All texts in one call costs two thirds of a call for each.
        openings = _batched(self._tokenizer.encode_openings, map(_opening, contents))
        responses = _batched(self._tokenizer.encode, map(_response, contents))
        return [self._sample(*parts) for parts in zip(contents, openings, responses, strict=True)]

    def turns(self, row: Row) -> Turns | str:
        """What the responses of a row's sample are made from, turn by turn, or what is wrong with the row.

        The prompt of a document is its first ``prompt_tokens``, that of a token store's sample these or else
        what stands before its first supervised token.
        """
        content = self._as_chat(row.content)
        head = self._treatment.prompt_tokens
        match content:
            case Bad():
                return content.problem
            case Chat():
                return self._template.turns(content.messages)
            case Pair():
                return _turn(self._tokenizer.encode_openings([content.prompt])[0])
            case Tokens():
                ids, mask = _arrays(content)
                if head is None and (mask[0] or not mask.any()):
                    return "no token before the first supervised one; say how many are one (--prompt-tokens)"
                prompt = ids[: int(mask.argmax()) if head is None else head].tolist()
                return self._problem_of_ids(ids) or _turn(prompt, head)
            case Text():
                if head is None:
                    return "a document has no prompt by itself; say how many tokens are (--prompt-tokens)"
                return _turn(self._tokenizer.encode_openings([content.text])[0][:head], head)

    def _sample(self, content: Content, opening: Ids, response: Ids) -> Sample | str:
        match content:
            case Bad():
                return content.problem
            case Chat():
                template = self._template  # without one no row can be read, which is not the row's fault
                try:
                    return template.sample(content.messages)
                except UsageError as error:
                    return str(error)
            case Pair():
                if content.response is None:
                    return "its response is empty"
                response = self._ended(response)
                return Sample(opening + response, [0] * len(opening) + [1] * len(response))
            case Tokens():
                ids, mask = _arrays(content)
                return self._problem_of_ids(ids) or self._headed(ids.tolist(), mask.tolist())
            case Text():
                ids_ = self._ended(opening)
                return self._headed(ids_, [1] * len(ids_))

    def _headed(self, ids: Ids, mask: list[int]) -> Sample:
        head = self._treatment.prompt_tokens
        if head is None:
            return Sample(ids, mask)
        return Sample(ids, [0] * min(head, len(ids)) + [1] * (len(ids) - head))

    def _ended(self, ids: Ids) -> Ids:
        eos = self._tokenizer.eos_id
        return ids if eos is None or ids[-1:] == [eos] else [*ids, eos]

    def _problem_of_ids(self, ids: NDArray[np.int32]) -> str | None:
        if ids.min() >= 0 and ids.max() < self._tokenizer.size:
            return None
        return f"token id {ids.max()} is not in the tokenizer's vocabulary of {self._tokenizer.size}"

    def _as_chat(self, content: Content) -> Content:
        if not (self._treatment.pairs_as_chats and isinstance(content, Pair)):
            return content
        messages = [{"role": "user", "content": content.prompt}]
        if content.response is not None:
            messages.append({"role": "assistant", "content": content.response})
        return Chat(messages)

    @cached_property
    def _template(self) -> ChatTemplate:
        return ChatTemplate(self._tokenizer, self._treatment.template_arguments)


class Done(msgspec.Struct, frozen=True):
    """What became of a few rows."""

    outcomes: list[Outcome]
    reused: bool = False
    """whether it was there from an earlier start"""


class Tokenisation(msgspec.Struct, frozen=True):
    """The job of making samples of rows as they are."""

    tokenizer: TextTokenizer
    treatment: Treatment
    rules: Rules

    def open(self) -> Callable[[Sequence[Row]], Done]:
        """What does the job for a few rows."""
        tokenizer = RowTokenizer(self.tokenizer, self.treatment)

        def work(rows: Sequence[Row]) -> Done:
            samples = tokenizer.samples(rows)
            return Done(
                [
                    bad(row, sample)
                    if isinstance(sample, str)
                    else self.rules.judge(row, sample, in_store(row))
                    for row, sample in zip(rows, samples, strict=True)
                ]
            )

        return work


def in_store(row: Row) -> bool | None:
    """Whether a token store says that the row is held out; None if it is no token store's."""
    return row.content.held_out if isinstance(row.content, Tokens) else None


def _turn(prompt: Ids, needed: int | None = None) -> Turns:
    """One response after a prompt, of at least ``needed`` tokens."""
    if len(prompt) < (needed or 1):
        return Sample([], [], "shorter_than_prompt")
    response = yield prompt
    if response is None:
        return Sample([], [], "prompt_too_long")
    return Sample(prompt + response, [0] * len(prompt) + [1] * len(response))


def _opening(content: Content) -> str | None:
    match content:
        case Text():
            return content.text
        case Pair():
            return content.prompt
    return None


def _response(content: Content) -> str | None:
    return content.response if isinstance(content, Pair) else None


def _batched(encode: Callable[[list[str]], list[Ids]], texts: Iterable[str | None]) -> list[Ids]:
    given = list(texts)
    encoded = iter(encode([text for text in given if text is not None]))
    return [[] if text is None else next(encoded) for text in given]


def _arrays(content: Tokens) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    return np.frombuffer(content.input_ids, np.int32), np.frombuffer(content.loss_mask, np.uint8)
