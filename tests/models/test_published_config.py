from __future__ import annotations

import json

import pytest

from dflash.errors import UsageError
from dflash.models.published_config import ServingFacts, refuse_taken_id, serving_facts


def target(folder, config, generation=None):
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


@pytest.mark.parametrize(
    ("config", "generation", "ids"),
    [
        (
            {"bos_token_id": None, "eos_token_id": 5, "pad_token_id": 1},
            None,
            {"eos_token_id": 5, "pad_token_id": 1},
        ),
        (
            {"eos_token_id": 5},
            {"eos_token_id": [5, 7], "pad_token_id": 7},
            {"eos_token_id": [5, 7], "pad_token_id": 7},
        ),
        ({"eos_token_id": [5]}, {"eos_token_id": 5}, {"eos_token_id": 5}),
        ({"bos_token_id": None}, {"bos_token_id": 0}, {"bos_token_id": 0}),
        ({}, {}, {}),
    ],
)
def test_special_ids_come_from_both_files_of_a_target(config, generation, ids, tmp_path):
    facts = serving_facts(target(tmp_path, {"max_position_embeddings": 64, **config}, generation))
    assert facts == ServingFacts(64, ids)


def test_a_length_may_be_unknown(tmp_path):
    assert serving_facts(target(tmp_path, {})) == ServingFacts()


def test_a_mask_of_its_own():
    refuse_taken_id(8, {"eos_token_id": [5, 7], "pad_token_id": 0})
    for taken in (0, 7):
        with pytest.raises(UsageError, match=f"mask_token_id {taken} is the"):
            refuse_taken_id(taken, {"eos_token_id": [5, 7], "pad_token_id": 0})
