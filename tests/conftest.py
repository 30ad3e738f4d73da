from __future__ import annotations

import json
import os
import signal

import hypothesis
import numpy as np
import pytest

# Before torch is imported by a test: one thread, as in every worker.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A background job starts with interrupts ignored, and so would all that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A deadline would be an absolute time, and machines differ.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")

MASK_ID = 96


@pytest.fixture(scope="session")
def small_target(tmp_path_factory):
    """A random Qwen3 of 8 layers, saved as anyone saves a model."""
    import torch
    from oracles import SMALL_SIZES
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("target")
    config = Qwen3Config(**SMALL_SIZES, max_position_embeddings=512, tie_word_embeddings=False)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokens = [{"id": MASK_ID, "content": "<|mask|>"}]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
    return folder


@pytest.fixture(scope="session")
def small_store(tmp_path_factory):
    """240 samples of 4..90 random tokens, some far more frequent than others; the last 40 are held out."""
    from dflash.data.store import StoreSample, write_store

    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("store") / "store.arrow"

    def samples():
        for row in range(240):
            length = int(rng.integers(4, 91))
            mask = np.zeros(length, np.uint8)
            mask[length // 3 :] = 1
            yield StoreSample(
                np.minimum(rng.geometric(0.1, length), MASK_ID - 1), mask, f"sample {row}", row >= 200
            )

    write_store(path, samples(), {})
    return path


@pytest.fixture(scope="session")
def small_config(small_target, small_store):
    """Settings of a run that takes a moment."""
    from dflash.config import load_config

    return load_config(
        None,
        (
            f"data.store={small_store}",
            f"data.target={small_target}",
            "data.allow_untrained_target=true",
            "data.held_out_samples=20",
            "batching.token_budget=400",
            "batching.strategy=random",
            "drafter.block_size=8",
            "drafter.max_anchors=4",
            "drafter.anchor_stride=4",
        ),
    )
