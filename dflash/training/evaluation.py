"""`dflash evaluate`: decode held-out prompts with a drafter, and hold the result against two others.

Against plain decoding, which must give the same text, and against teacher forcing, which must give the same
accepted lengths (see :mod:`dflash.training.teacher_forced`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dflash.command_line import say
from dflash.config import Config, DataSettings
from dflash.data.sources import open_store, target_folder
from dflash.data.store import TokenStore
from dflash.errors import ExitCode, UsageError
from dflash.models.acceptance import Acceptance
from dflash.models.cached_target import CachedTarget, end_ids
from dflash.models.decode import DrafterContext, Limits, Response, decode, decode_plainly
from dflash.models.drafter import Drafter
from dflash.models.export import read_drafter
from dflash.models.sampling import Greedy, RejectionSampling, Rule
from dflash.models.starting_point import check_target
from dflash.models.target import load_causal_lm, target_head
from dflash.training.schedule import held_out_micro_batches
from dflash.training.teacher_forced import Parity, TeacherForced, parity, teacher_forced

PROMPT_TOKENS = 32
"""of a sample that is supervised from its first token, and so has no prompt of its own"""


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """What is to be decoded, and how."""

    checkpoint: Path
    target: str
    data: str
    prompts: int
    prompt_tokens: int | None
    """None: the tokens before a sample's first supervised one"""
    max_new_tokens: int
    temperature: float
    """0: greedy"""
    checked: int
    """prompts that are decoded plainly as well; greedy only"""
    device: str
    seed: int


class ResponseFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One response."""

    row: int
    """of the store"""
    prompt_tokens: int
    new_tokens: int
    lengths: list[int]
    """tokens that each verification added"""
    teacher_forced_lengths: list[int] | None
    same_as_plain: bool | None
    """None: not decoded plainly"""


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. Lengths count the bonus token; definitions: :mod:`dflash.models.acceptance`."""

    checkpoint: str
    target: str
    data: str
    fingerprint: str
    """of the store"""
    block_size: int
    max_new_tokens: int
    temperature: float
    seed: int
    device: str
    interrupted: bool

    tau: float | None
    """mean over responses"""
    tau_interval: tuple[float, float] | None
    """95 %, responses being the replicates"""
    pooled_tau: float | None
    """mean over verifications"""
    histogram: list[int]
    """verifications of length 1..B"""
    slots: list[float]
    """share of verifications whose length is above 1..B-1"""
    new_tokens: int
    """as many forwards of the target would plain decoding need"""
    target_forwards: int
    forwards_saved: float | None
    teacher_forced_length: float | None
    """mean at the anchors of the verifications, cut where the text ends as decoded lengths are"""
    teacher_forced_everywhere: float | None
    """mean over all positions at which a block can start, as in training's evaluation"""
    parity: Parity | None
    """greedy only"""
    responses: list[ResponseFigures]

    @property
    def checked(self) -> list[ResponseFigures]:
        """The responses that were decoded plainly as well."""
        return [response for response in self.responses if response.same_as_plain is not None]

    @property
    def differing_rows(self) -> list[int]:
        """Store rows whose text is not that of plain decoding."""
        return [response.row for response in self.checked if not response.same_as_plain]

    @property
    def exit_code(self) -> ExitCode:
        if self.interrupted:
            return ExitCode.INTERRUPTED
        failed = self.differing_rows or (self.parity is not None and not self.parity.holds)
        return ExitCode.TRIAL_FAILED if failed else ExitCode.OK


@dataclass
class _Decoded:
    rows: list[int]
    responses: list[Response]
    same: list[bool | None]


def evaluate_drafter(request: EvaluationRequest) -> Evaluation:
    """Decode, compare, count. Ctrl-C ends it with the responses that are whole, if there is one.

    Raises:
        UsageError: the checkpoint, the target or the store cannot be read, or do not belong together.
        NonFiniteError: the target gives what is no number.
    """
    torch.set_num_threads(1)
    _check_device(request.device)
    drafter = read_drafter(request.checkpoint, request.device)
    folder = target_folder(DataSettings(target=request.target))
    model = load_causal_lm(folder).to(request.device)
    check_target(drafter.shape, request.checkpoint, folder)
    store = open_store(DataSettings(store=request.data), say)
    prompts = choose_prompts(store, request.prompts, request.prompt_tokens, drafter.shape.vocab_size)
    done = _Decoded([], [], [])
    forced = None
    interrupted = False
    try:
        _decode(request, drafter, model, prompts, done)
        forced = teacher_forced(drafter, model, done.responses)
    except KeyboardInterrupt:
        if not done.responses:
            raise
        interrupted = True
    return _figures(request, store, drafter.shape.block_size, done, forced, interrupted)


def choose_prompts(
    store: TokenStore, count: int, prompt_tokens: int | None, vocabulary: int
) -> list[tuple[int, NDArray[np.int64]]]:
    """Store row and prompt (int64[P], P >= 1) of ``count`` held-out samples, spread evenly over the lengths.

    They are those that training evaluates for the same count, in the order of their rows.

    Args:
        prompt_tokens: how many tokens of a sample are its prompt; None for those before its first supervised
            one, or :data:`PROMPT_TOKENS` where that is its first token.

    Raises:
        UsageError: the store has no held-out sample, or a prompt has a token that the target does not know.
    """
    chosen = held_out_micro_batches(store, Config(data=DataSettings(held_out_samples=count)))
    if not chosen:
        raise UsageError(f"{store.path} has no held-out sample: prepare it with some, or give another store")
    prompts = []
    for row in np.sort(np.concatenate([rows for rows, _ in chosen])).tolist():
        tokens, mask = store.sample(row)
        length = prompt_tokens
        if length is None:
            supervised = np.flatnonzero(mask)
            length = int(supervised[0]) if len(supervised) else len(tokens)
        prompt = tokens[: length or PROMPT_TOKENS].astype(np.int64)
        if prompt.max() >= vocabulary:
            raise UsageError(
                f"{store.path}: row {row} has token id {prompt.max()}, the target knows {vocabulary}: "
                "the store was made with another tokenizer"
            )
        prompts.append((row, prompt))
    return prompts


def _decode(
    request: EvaluationRequest,
    drafter: Drafter,
    model: Any,
    prompts: list[tuple[int, NDArray[np.int64]]],
    done: _Decoded,
) -> None:
    limits = Limits(request.max_new_tokens, end_ids(model))
    head = target_head(model)
    columns = (
        TextColumn("decoding"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("prompts, tau {task.fields[tau]}"),
        TimeRemainingColumn(),
    )
    with (
        CachedTarget(model, drafter.shape.target_layer_ids) as target,
        Progress(*columns, console=Console(stderr=True), transient=True) as progress,
    ):
        task = progress.add_task("", total=len(prompts), tau="-")
        for number, (row, prompt) in enumerate(prompts):
            rule = _rule(request, row)
            response = decode(target, DrafterContext(drafter, head), prompt, limits, rule)
            same = None
            if number < request.checked:
                same = bool(np.array_equal(response.tokens, decode_plainly(target, prompt, limits, rule)))
            done.rows.append(row)
            done.same.append(same)
            done.responses.append(response)
            tau = Acceptance(drafter.shape.block_size, [each.lengths for each in done.responses]).tau
            progress.update(task, advance=1, tau="-" if tau is None else f"{tau:.2f}")


def _rule(request: EvaluationRequest, row: int) -> Rule:
    """A response's draws depend on the seed and its row alone."""
    if not request.temperature:
        return Greedy()
    (seed,) = np.random.SeedSequence([request.seed, row]).generate_state(1, np.uint64)
    return RejectionSampling(request.temperature, torch.Generator(request.device).manual_seed(int(seed) >> 1))


def _figures(
    request: EvaluationRequest,
    store: TokenStore,
    block_size: int,
    done: _Decoded,
    forced: TeacherForced | None,
    interrupted: bool,
) -> Evaluation:
    acceptance = Acceptance(block_size, [response.lengths for response in done.responses])
    same_length = parity(forced, done.responses) if forced and not request.temperature else None
    at_anchors = np.concatenate(forced.lengths_R) if forced else np.zeros(0)
    everywhere = forced.everywhere if forced else np.zeros(0)
    return Evaluation(
        checkpoint=str(request.checkpoint),
        target=request.target,
        data=request.data,
        fingerprint=store.fingerprint,
        block_size=block_size,
        max_new_tokens=request.max_new_tokens,
        temperature=request.temperature,
        seed=request.seed,
        device=request.device,
        interrupted=interrupted,
        tau=acceptance.tau,
        tau_interval=acceptance.tau_interval(),
        pooled_tau=acceptance.pooled_tau,
        histogram=acceptance.histogram_B.tolist(),
        slots=acceptance.slots_B.tolist(),
        new_tokens=acceptance.tokens,
        target_forwards=acceptance.target_forwards,
        forwards_saved=acceptance.forwards_saved,
        teacher_forced_length=float(at_anchors.mean()) if len(at_anchors) else None,
        teacher_forced_everywhere=float(everywhere.mean()) if len(everywhere) else None,
        parity=same_length,
        responses=[
            ResponseFigures(
                row=row,
                prompt_tokens=len(response.prompt),
                new_tokens=len(response.tokens),
                lengths=response.lengths.tolist(),
                teacher_forced_lengths=forced.lengths_R[number].tolist() if forced else None,
                same_as_plain=same,
            )
            for number, (row, response, same) in enumerate(
                zip(done.rows, done.responses, done.same, strict=True)
            )
        ],
    )


def _check_device(name: str) -> None:
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise UsageError(f"--device {name} cannot be used here: {reason}") from error
