"""The job of replacing responses by a target's own, in chunks of rows, each kept when it is done."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch

from dflash.data.atomic import atomic_writer
from dflash.data.conversation import Sample, Turns
from dflash.data.documents import Row
from dflash.data.rules import Outcome, Rules, bad
from dflash.data.tokenisation import Done, RowTokenizer, Treatment, in_store
from dflash.data.tokenizer import Ids, TextTokenizer
from dflash.errors import UsageError
from dflash.models.generation import Continuer, Decoding

_FORMAT = 1
_NOTHING = Sample([], [])


class Regeneration(msgspec.Struct, frozen=True):
    """The job of making samples whose responses are the target's.

    A chunk's file is named by all that decides what is in it, so that a later start takes only what it would
    make again: the rows, these settings, the tokenizer, the target's weights, the versions of what computes.

    ``target_hash``  of the target's weights and config
    ``kept``         folder of the chunks that are done
    """

    tokenizer: TextTokenizer
    treatment: Treatment
    rules: Rules
    target: str
    target_hash: str
    decoding: Decoding
    device: str
    dtype: str
    skip_bad: bool
    kept: str

    def open(self) -> Callable[[Sequence[Row]], Done]:
        """Load the target, and return what does a chunk.

        Raises:
            UsageError: the target cannot be loaded.
        """
        return _Regenerator(self)

    def digest(self) -> bytes:
        """Of what decides the result beside the rows."""
        import transformers

        settings = {
            **msgspec.structs.asdict(self),
            "tokenizer": self.tokenizer.digest,
            "target": "",
            "kept": "",
        }
        versions = [str(torch.__version__), transformers.__version__, _FORMAT]
        return hashlib.sha256(msgspec.msgpack.encode([settings, *versions])).digest()


class _Regenerator:
    def __init__(self, job: Regeneration) -> None:
        self._job = job
        self._digest = job.digest()
        self._rows = RowTokenizer(job.tokenizer, job.treatment)
        ends = () if job.tokenizer.eos_id is None else (job.tokenizer.eos_id,)
        self._continue = Continuer.load(
            Path(job.target), job.decoding, ends, device=job.device, dtype=job.dtype
        )

    def __call__(self, rows: Sequence[Row]) -> Done:
        name = hashlib.sha256(self._digest + msgspec.msgpack.encode(rows)).hexdigest()
        path = Path(self._job.kept, f"{name}.msgpack")
        with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
            return Done(msgspec.msgpack.decode(path.read_bytes(), type=list[Outcome]), reused=True)
        outcomes = self._outcomes(rows)
        if self._job.skip_bad or not any(outcome.detail for outcome in outcomes):
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_writer(path) as file:
                file.write(msgspec.msgpack.encode(outcomes))
        return Done(outcomes)

    def _outcomes(self, rows: Sequence[Row]) -> list[Outcome]:
        conversations = [_Conversation(row, self._rows.turns(row)) for row in rows]
        broken = [each for each in conversations if each.problem is not None]
        if broken and not self._job.skip_bad:
            return [each.outcome(self._job.rules) for each in broken]  # which ends the run: no time for more
        turn = 0
        while waiting := [each for each in conversations if each.prompt is not None]:
            self._refuse_too_long(waiting)
            asked = [each for each in waiting if each.prompt is not None]
            prompts = [each.prompt for each in asked if each.prompt is not None]
            responses = self._continue(prompts, [(each.row.number, turn) for each in asked])
            for each, response in zip(asked, responses, strict=True):
                each.answer(response)
            turn += 1
        return [each.outcome(self._job.rules) for each in conversations]

    def _refuse_too_long(self, waiting: list[_Conversation]) -> None:
        """A prompt that leaves no room for a whole response gets none."""
        room = self._continue.positions
        new = self._job.decoding.max_new_tokens
        most = self._job.rules.max_tokens
        for each in waiting:
            length = len(each.prompt or ())
            if (room is not None and length + new > room) or (most is not None and length >= most):
                each.answer(None)


class _Conversation:
    """A row on its way to a sample: it has a prompt that waits for a response, or it is done."""

    def __init__(self, row: Row, turns: Turns | str) -> None:
        self.row = row
        self.prompt: Ids | None = None
        self.problem: str | None = None
        self._sample = _NOTHING
        if isinstance(turns, str):
            self.problem = turns
        else:
            self._turns = turns
            self._go_on(None)

    def answer(self, response: Ids | None) -> None:
        self._go_on(response)

    def outcome(self, rules: Rules) -> Outcome:
        if self.problem is not None:
            return bad(self.row, self.problem)
        return rules.judge(self.row, self._sample, in_store(self.row))

    def _go_on(self, response: Ids | None) -> None:
        try:
            self.prompt = self._turns.send(response)
        except StopIteration as end:
            self.prompt, self._sample = None, end.value
        except UsageError as error:
            self.prompt, self.problem = None, str(error)
