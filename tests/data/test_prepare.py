"""The whole job: every row is a sample or has its line in the ledger, whatever the number of processes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.data.documents import Fields
from dflash.data.inputs import open_inputs
from dflash.data.prepare import ledger_path, prepare
from dflash.data.rules import Rules
from dflash.data.sample import sample_tokenizer
from dflash.data.store import TokenStore
from dflash.data.tokenisation import Tokenisation, Treatment
from dflash.data.tokenizer import TextTokenizer
from dflash.errors import UsageError

RULES, TREATMENT = Rules(), Treatment()


class Silent:
    """Remembers the shares of the input that were done."""

    def __init__(self):
        self.shares = []

    def advanced(self, done, counts, share):
        self.shares.append(share)


def write_jsonl(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def run(path, out, rules=RULES, treatment=TREATMENT, **options):
    sources = open_inputs([str(path)], Fields())
    progress = Silent()
    job = Tokenisation(TextTokenizer.load("sample"), treatment, rules)
    counts = prepare(sources, job, out, {"pad_id": 1}, progress, **options)
    assert progress.shares == sorted(progress.shares)
    assert progress.shares[-1] == pytest.approx(1)
    ledger = [json.loads(line) for line in ledger_path(out).read_text().splitlines()]
    return TokenStore.open(out), counts, ledger


RECORDS = st.lists(
    st.fixed_dictionaries({"text": st.sampled_from(["", "a", "one two three", "x <|mask|>", "word " * 40])}),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25)
@given(records=RECORDS, rules=st.builds(Rules, max_tokens=st.sampled_from([None, 20]), mask_id=st.just(2)))
def test_every_row_is_a_sample_or_in_the_ledger(tmp_path_factory, records, rules):
    folder = tmp_path_factory.mktemp("prepare")
    path, out = write_jsonl(folder / "x.jsonl", [*records, {"text": "kept as it is"}]), folder / "s.arrow"
    store, counts, ledger = run(path, out, rules, skip_bad=True, chunk_rows=5)
    store.verify()
    dropped = {entry["name"] for entry in ledger if "dropped" in entry}
    names = [store.name(row) for row in range(len(store))]
    assert sorted([*names, *dropped], key=lambda name: int(name.split(":")[1])) == [
        f"x.jsonl:{i + 1}" for i in range(len(records) + 1)
    ]
    metadata = store.metadata
    assert counts.rows == len(records) + 1
    assert metadata["samples"] == len(store) == counts.samples
    assert metadata["tokens"] == store.lengths.sum()
    assert metadata["held_out"] == len(store.rows(held_out=True))
    assert metadata["supervised_tokens"] == sum(int(store.loss_mask(r).sum()) for r in range(len(store)))
    assert sum(metadata["left_out"].values()) == len(dropped)
    assert metadata["left_out"].get("bad_row", 0) == sum(not record["text"] for record in records)
    assert metadata["left_out"].get("mask_token", 0) == sum(
        "<|mask|>" in record["text"] for record in records
    )
    cut = [entry for entry in ledger if "cut" in entry]
    expected = sum(record["text"].startswith("word") for record in records) if rules.max_tokens else 0
    assert sum(metadata["cut"].values()) == len(cut) == expected
    assert all(entry["kept_tokens"] == 20 < entry["tokens"] for entry in cut)
    assert metadata["pad_id"] == 1


def test_bytes_do_not_depend_on_processes_or_chunks(tmp_path):
    records = [{"text": f"def function_{i}():\n    return {i * 37}\n" * (1 + i % 9)} for i in range(400)]
    path = write_jsonl(tmp_path / "x.jsonl", [*records, {"text": "<|mask|>"}])
    rules, treatment = Rules(max_tokens=50, mask_id=2), Treatment(prompt_tokens=4)
    variants = [(1, 256), (2, 256), (2, 7)]
    found = []
    for processes, chunk_rows in variants:
        out = tmp_path / f"{processes}-{chunk_rows}.arrow"
        run(path, out, rules, treatment, processes=processes, chunk_rows=chunk_rows)
        found.append((out.read_bytes(), ledger_path(out).read_bytes()))
    assert found[1:] == found[:1] * 2
    assert len(found[0][1].splitlines()) > 100


@pytest.mark.parametrize("processes", [1, 2])
def test_a_bad_row_stops_the_job_with_its_line_and_leaves_nothing(tmp_path, processes):
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "good"}\n' * 40 + '{"text": 3}\n' + '{"text": "good"}\n' * 40 + "{broken\n")
    with pytest.raises(UsageError, match=rf"^{path}:41: its 'text' is a number, not text .--skip-bad"):
        run(path, tmp_path / "s.arrow", processes=processes, chunk_rows=10)
    assert [found.name for found in tmp_path.iterdir()] == ["x.jsonl"]


def test_no_sample_is_left(tmp_path):
    path = write_jsonl(tmp_path / "x.jsonl", [{"text": "<|mask|>"}, {"text": ""}])
    with pytest.raises(UsageError, match=r"no sample is left of 2 rows \(1 bad row, 1 mask token\)"):
        run(path, tmp_path / "s.arrow", Rules(mask_id=2), skip_bad=True)
    assert [found.name for found in tmp_path.iterdir()] == ["x.jsonl"]


def test_a_limit_is_of_rows(tmp_path):
    path = write_jsonl(tmp_path / "x.jsonl", [{"text": f"number {i}"} for i in range(30)])
    store, _, _ = run(path, tmp_path / "s.arrow", limit=7, chunk_rows=3)
    texts = [sample_tokenizer().decode(store.tokens(row).tolist()) for row in range(len(store))]
    assert texts == [f"number {i}" for i in range(7)]
