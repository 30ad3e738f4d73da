"""Make the sample tokenizer and the sample target, and the card that says how good they are.

    python benchmarks/sample/build.py [--steps N]

Writes into dflash/data/sample/. Both learn from the training split of the sample corpus only. It runs on one
thread, so that one machine and one Python give the same bytes again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dflash.data import sample
from dflash.data.collate import Batch, collate_padded
from dflash.data.corpus import held_out, library_functions
from dflash.data.store import TokenStore

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

VOCABULARY = 2048
BINS = ((16, 64), (65, 128), (129, 256), (257, 512), (513, 1024))
BATCH_TOKENS = 1024
STEPS = 6000
PEAK_LEARNING_RATE = 6e-3
SEED = 0


def build_tokenizer(directory: Path) -> None:
    """Train the byte-level BPE and write tokenizer.json and what AutoTokenizer needs beside it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    texts = {
        function.prompt + function.response: function
        for function in library_functions()
        if not held_out(function.module)
    }
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[sample.END_OF_TEXT, sample.PAD, sample.MASK],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    parts = (part for function in texts.values() for part in (function.prompt, function.response))
    tokenizer.train_from_iterator(parts, trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=sample.END_OF_TEXT,
        pad_token=sample.PAD,
        mask_token=sample.MASK,
        model_max_length=sample.MAX_TOKENS,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(directory)


def new_target() -> Any:
    """An untrained Qwen3 target: grouped-query attention, fp32."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = sample.sample_tokenizer()
    config = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2 * sample.MAX_TOKENS,
        rope_theta=10_000.0,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(sample.END_OF_TEXT),
        pad_token_id=tokenizer.token_to_id(sample.PAD),
        dtype="float32",
    )
    target = Qwen3ForCausalLM(config)
    # The default of 0.02 is far below 1/sqrt(fan-in) of a model so narrow: it would see token counts alone
    # for the first hundreds of steps. Branches start small, for the sum of 16 of them to stay near 1.
    for name, weight in target.named_parameters():
        if weight.ndim == 2:
            branch_end = name.endswith(("o_proj.weight", "down_proj.weight"))
            torch.nn.init.normal_(weight, std=weight.shape[1] ** -0.5 * (0.25 if branch_end else 1.0))
    return target


def epoch_batches(store: TokenStore, epoch: int) -> Iterator[Batch]:
    """The training split once: rows of like length together, little padding, batches in random order."""
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([SEED, epoch])))
    rows = rng.permutation(store.rows())
    rows = rows[np.argsort(store.lengths[rows], kind="stable")]
    batches: list[NDArray[np.int64]] = []
    start = 0
    for stop in range(1, len(rows) + 1):
        if stop == len(rows) or (stop + 1 - start) * store.lengths[rows[stop]] > BATCH_TOKENS:
            batches.append(rows[start:stop])
            start = stop
    for i in rng.permutation(len(batches)):
        yield collate_padded(store, batches[i], store.lengths[batches[i]])


def token_losses(target: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropy of every token but a row's first, and whether it is supervised; both flat.

    Padding is on the right and attention causal: no real token sees a pad.
    """
    import torch
    from torch.nn import functional

    ids = torch.from_numpy(batch.input_ids)
    hidden = target.model(input_ids=ids, use_cache=False).last_hidden_state
    real = torch.arange(1, ids.shape[1]) < torch.from_numpy(batch.lengths)[:, None]
    losses = functional.cross_entropy(
        target.lm_head(hidden[:, :-1][real]), ids[:, 1:][real], reduction="none"
    )
    return losses, torch.from_numpy(batch.loss_mask)[:, 1:][real].bool()


def train(target: Any, store: TokenStore, steps: int) -> int:
    """Train for ``steps`` batches, AdamW with warm-up and cosine; return the number of real tokens."""
    import torch

    matrices = [p for name, p in target.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in target.named_parameters() if p.ndim < 2 or "embed" in name]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=PEAK_LEARNING_RATE,
        betas=(0.9, 0.95),
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(step, steps))
    batches = (batch for epoch in itertools.count() for batch in epoch_batches(store, epoch))
    tokens, begin, recent = 0, time.perf_counter(), []
    for step, batch in enumerate(itertools.islice(batches, steps), start=1):
        loss = token_losses(target, batch)[0].mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(target.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        tokens += int(batch.lengths.sum())
        recent.append(loss.item())
        if step % 100 == 0 or step == steps:
            rate = tokens / (time.perf_counter() - begin)
            print(f"step {step}/{steps}: loss {np.mean(recent):.3f}, {rate:.0f} tokens/s", flush=True)
            recent = []
    return tokens


def rate_factor(step: int, steps: int) -> float:
    """Share of the peak learning rate: linear over the first 5 % of the steps, then cosine to 2 %."""
    warm_up = max(1, steps // 20)
    progress = max(0, step - warm_up) / max(1, steps - warm_up)
    return min((step + 1) / warm_up, 0.02 + 0.49 * (1 + math.cos(math.pi * progress)))


def save(target: Any, directory: Path) -> None:
    """Write config.json, which says float32, and the weights in float16, half the size."""
    from safetensors.torch import save_file

    target.config.architectures = [type(target).__name__]
    target.config.save_pretrained(directory)
    weights = {name: value.half().contiguous() for name, value in target.state_dict().items()}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    os.chmod(directory / "model.safetensors", 0o644)


def evaluate(target: Any, store: TokenStore) -> list[dict[str, Any]]:
    """Held-out perplexity, of all tokens and of the supervised ones: first in total, then by length."""
    import torch

    rows = store.rows(held_out=True)
    sums = np.empty((len(rows), 4))
    with torch.no_grad():
        for i in range(len(rows)):
            alone = rows[i : i + 1]
            losses, supervised = token_losses(target, collate_padded(store, alone, store.lengths[alone]))
            losses = losses.double()
            sums[i] = len(losses), losses.sum(), supervised.sum(), losses[supervised].sum()
    result = []
    for low, high in ((BINS[0][0], BINS[-1][1]), *BINS):
        inside = (store.lengths[rows] >= low) & (store.lengths[rows] <= high)
        tokens, loss, supervised_tokens, supervised_loss = sums[inside].sum(axis=0)
        result.append(
            {
                "tokens_per_sample": [low, high],
                "samples": int(inside.sum()),
                "predicted_tokens": int(tokens),
                "perplexity": round(math.exp(loss / tokens), 3),
                "supervised_tokens": int(supervised_tokens),
                "supervised_perplexity": round(math.exp(supervised_loss / supervised_tokens), 3),
            }
        )
    return result


def write_card(directory: Path, store: TokenStore, target: Any, training: dict[str, Any]) -> None:
    """Write card.json, for programs, and README.md, for people."""
    import tokenizers
    import torch
    import transformers

    card = {
        "training": training,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
        },
        "parameters": sum(parameter.numel() for parameter in target.parameters()),
        "corpus": {"fingerprint": store.fingerprint, **store.metadata},
        "held_out": evaluate(target, store),
    }
    (directory / "card.json").write_text(json.dumps(card, indent=2) + "\n")
    rows = "\n".join(
        "| {}..{} | {samples} | {perplexity:.2f} | {supervised_perplexity:.2f} |".format(
            *entry["tokens_per_sample"], **entry
        )
        for entry in card["held_out"]
    )
    (directory / "README.md").write_text(
        README.format(rows=rows, parameters=card["parameters"], **training, **card["versions"])
    )


README = """\
# The sample tokenizer and target

A byte-level BPE of 2,048 pieces and a Qwen3-architecture model of {parameters:,} parameters, made by

    {command}

from the functions of Python {python}'s standard library: {steps:,} steps, {tokens:,} tokens, seed {seed}.
Weights are stored in float16 and used in float32. Perplexity on modules that neither has seen:

| tokens per sample | samples | all tokens | supervised tokens |
|---|---|---|---|
{rows}

The embedding of `<|mask|>` is untrained: no text holds that token. card.json says the same for programs.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    directory = sample.sample_target_dir()
    build_tokenizer(directory)
    store = TokenStore.open(sample.prepare_sample(print))
    target = new_target()
    begin = time.perf_counter()
    tokens = train(target, store, options.steps)
    training = {
        "command": f"python benchmarks/sample/build.py --steps {options.steps}",
        "seconds": round(time.perf_counter() - begin),
        "steps": options.steps,
        "tokens": tokens,
        "batch_tokens": BATCH_TOKENS,
        "peak_learning_rate": PEAK_LEARNING_RATE,
        "seed": SEED,
    }
    save(target, directory)
    write_card(directory, store, AutoModelForCausalLM.from_pretrained(directory), training)


if __name__ == "__main__":
    main()
