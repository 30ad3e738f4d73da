"""Chats through a tokenizer's template: tokens and loss mask, or turns whose answers are made anew."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Mapping
from typing import Any, NamedTuple

from dflash.data.documents import Message
from dflash.data.tokenizer import Ids, TextTokenizer
from dflash.errors import UsageError


class Sample(NamedTuple):
    """Ids and loss mask, of one length."""

    ids: Ids
    mask: list[int]
    cut: str | None = None
    """why it is less than its row, if it is"""


Turns = Generator[Ids, Ids | None, Sample]
"""A sample whose responses are made as it goes: yields the ids that a response is wanted for, is sent the
response (with its end token, if it ended), and returns the sample. Sent None, it returns what it has."""


class ChatTemplate:
    """The chat template of a tokenizer, with arguments of one's own such as ``enable_thinking``."""

    def __init__(self, tokenizer: TextTokenizer, arguments: Mapping[str, Any]) -> None:
        """
        Raises:
            UsageError: the tokenizer has no chat template.
        """
        self._tokenizer = tokenizer
        self._arguments = dict(arguments)
        try:
            template: str = tokenizer.hub.get_chat_template()
        except ValueError as error:
            raise UsageError(
                f"{tokenizer.folder}: this tokenizer has no chat template; give an instruct model's, or rows "
                "with prompt and response"
            ) from error
        self._marks_generation = "endgeneration" in template

    def sample(self, messages: list[Message]) -> Sample:
        """Ids of the chat, and the mask of what the assistant wrote, its end-of-turn token included.

        A template with generation marks says itself what that is. For others a turn is what the rendered
        chat adds to the generation prompt before it.

        Raises:
            UsageError: the template refuses the messages, or renders the beginning of the chat differently
                when more follows, so that turns cannot be told apart.
        """
        if self._marks_generation:
            encoded = self._apply(
                messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
            )
            return Sample(encoded["input_ids"], encoded["assistant_masks"])
        text = self._render(messages)
        spans = self._assistant_spans(messages, text)
        ids, offsets = self._tokenizer.encode_with_offsets(text)
        # By where tokens start: one that begins before a turn is none that the assistant would write.
        starts = [start for start, _ in offsets]
        mask = [0] * len(ids)
        for start, end in spans:
            first, last = bisect_left(starts, start), bisect_left(starts, end)
            mask[first:last] = [1] * (last - first)
        return Sample(ids, mask)

    def turns(self, messages: list[Message]) -> Turns:
        """The chat with every assistant's message made anew, each after the history that was made before it.

        A chat that ends without an assistant's message gets one. Ids of made responses stay as they are: a
        text that is decoded and encoded again may come out as other tokens than the target chose. The chat
        ends early where the template does not show a response in the history as it was written, or where
        None is sent.
        """
        history: list[Message] = []
        ids: Ids = []
        mask: list[int] = []
        shown = ""
        for message in [*messages, *([] if messages[-1]["role"] == "assistant" else [_ANSWER])]:
            if message["role"] != "assistant":
                history.append(message)
                continue
            text = self._render(history, add_generation_prompt=True)
            if not text.startswith(shown):
                return Sample(ids, mask, "history_rewritten")
            between = self._tokenizer.encode([text[len(shown) :]])[0]
            response = yield ids + between
            if response is None:
                return Sample(ids, mask, "prompt_too_long")
            ids, mask = ids + between + response, mask + [0] * len(between) + [1] * len(response)
            end = response[-1:] if response[-1] in self._tokenizer.special_ids else []
            content = self._tokenizer.decode(response[: len(response) - len(end)])
            history.append({"role": "assistant", "content": content})
            shown = text + content + self._tokenizer.decode(end)
        return Sample(ids, mask)

    def _assistant_spans(self, messages: list[Message], text: str) -> list[tuple[int, int]]:
        spans = []
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            prompt = self._render(messages[:index], add_generation_prompt=True)
            if not text.startswith(prompt):
                raise _not_a_prefix(index)
            spans.append((len(prompt), self._end_of_turn(messages, index, text, len(prompt))))
        return spans

    def _end_of_turn(self, messages: list[Message], index: int, text: str, start: int) -> int:
        until = self._render(messages[: index + 1])
        if text.startswith(until):
            # What templates write behind the end-of-turn token, a newline mostly, no model ever writes.
            end = len(until[start:].rstrip()) + start
            return end if until[:end].endswith(self._tokenizer.special_tokens) else len(until)
        # Some templates show a turn differently once it is history (they leave out its reasoning). Then the
        # turn ends at its end token, if one stands before anything else is said.
        eos = self._tokenizer.hub.eos_token
        found = text.find(eos, start) if eos else -1
        following = self._render(messages[: index + 2]) if found >= 0 else ""
        if found < 0 or not text.startswith(following) or found + len(eos) > len(following):
            raise _not_a_prefix(index)
        return int(found + len(eos))

    def _render(self, messages: list[Message], **options: Any) -> str:
        text: str = self._apply(messages, tokenize=False, **options)
        return text

    def _apply(self, messages: list[Message], **options: Any) -> Any:
        try:
            return self._tokenizer.hub.apply_chat_template(messages, **options, **self._arguments)
        except Exception as error:  # a template is a program, and raises what it likes
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise UsageError(f"the chat template refuses the messages ({reason})") from error


_ANSWER: Message = {"role": "assistant", "content": ""}


def _not_a_prefix(index: int) -> UsageError:
    return UsageError(
        f"the chat template renders what stands around message {index + 1} differently when more follows, "
        "so the assistant's part cannot be told: use a template with {% generation %} marks, or chats of "
        "one turn"
    )
