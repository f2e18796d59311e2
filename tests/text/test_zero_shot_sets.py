"""How the zero-shot sets are found, and what their table says."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from seqdiff.data.suite import MissingSet, SuiteSet, UnfitSet
from text.corpora.datamodule import LongDocuments, TextDataModule
from text.corpora.detokenizers import DETOKENIZERS
from text.corpora.documents import Edges, Reading, read_documents
from text.corpora.preparation import UnspellableError
from text.corpora.published import PUBLISHED, hub_documents
from text.evaluation import zero_shot
from text.evaluation.zero_shot import SETS, suite
from text.tokenizers.characters import ByteTokenizer, CharacterTokenizer

DATA = TextDataModule(ByteTokenizer(), 16, "x.txt")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a folder in the hub's cache format under the name of PTB."""
    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "hf")
    files = [{"split": "validation", "path": "v.parquet"}]
    header = {"config_name": "penn_treebank", "data_files": files}
    (folder / "README.md").write_text("---\nconfigs:\n- " + json.dumps(header) + "\n---\n")
    pq.write_table(pa.table({"sentence": ["it 's N more", "no"]}), folder / "v.parquet")
    facts = replace(PUBLISHED["ptb"], hub=str(folder), revision="main")
    monkeypatch.setitem(PUBLISHED, "ptb", facts)
    return folder


def test_the_seven_sets_of_the_papers_with_splits_and_detokenizers() -> None:
    found = [(one.name, one.split, PUBLISHED[one.corpora[0]].detokenizer) for one in SETS]
    assert found == [
        ("ptb", "valid", "ptb"),
        ("wikitext", "valid", "wikitext"),
        ("lm1b", "test", "lm1b"),
        ("lambada", "test", "lambada"),
        ("ag_news", "test", "none"),
        ("pubmed", "valid", "scientific_papers"),
        ("arxiv", "valid", "scientific_papers"),
    ]
    columns = zip(*(one.perplexities for one in SETS), strict=True)
    published = dict(zip(suite.models, columns, strict=True))
    assert published["MDLM"] == (95.26, 32.83, 67.01, 47.52, 61.15, 41.89, 37.37)
    assert published["SEDD"] == (100.09, 34.28, 68.20, 49.86, 62.09, 44.53, 38.48)
    assert published["AR"] == (82.05, 25.75, 51.25, 51.28, 52.09, 49.01, 41.73)
    facts = [PUBLISHED[name] for one in SETS for name in one.corpora]
    assert all(whole.slices == {} for whole in facts), "whole splits are read"


def test_a_set_from_the_hub(hub: Path) -> None:
    found, missing = suite.find(DATA, None)
    (ptb,) = found
    assert isinstance(ptb, SuiteSet)
    assert ptb.origin == f"{hub} on the hub, split valid"
    mended = "".join(DETOKENIZERS["ptb"](text) + "\n" for text in ("it 's N more", "no"))
    tokens, counts = ptb.dataset.rows(np.arange(len(ptb.dataset)))
    assert ByteTokenizer().decode(tokens[counts]) == mended
    assert ptb.units_per_token == (len(mended) - 2) / len(mended)
    assert [one.name for one in missing] == [one.name for one in SETS[1:]]


def test_a_hub_that_holds_something_else_is_said(hub: Path) -> None:
    (hub / "v.parquet").unlink()
    pq.write_table(pa.table({"body": ["x"]}), hub / "v.parquet")
    _, missing = suite.find(DATA, None)
    assert "must have the column 'sentence', got body" in missing[0].reason
    assert missing[1].reason == "HF_HUB_OFFLINE is set"


def test_names_of_copies(tmp_path: Path) -> None:
    ptb, wikitext, lambada = SETS[0], SETS[1], SETS[3]
    for wanted, name, fits in (
        (ptb, "ptb.valid.txt", True),
        (ptb, "ptb_validation.parquet", True),
        (ptb, "ptb-valid.jsonl.gz", True),
        (ptb, "ptb.txt", True),
        (ptb, "ptb.train.txt", False),
        (ptb, "ptb.valid.csv", False),
        (ptb, "my-ptb.valid.txt", False),
        (wikitext, "wikitext-2.valid.txt.gz", True),
        (wikitext, "wikitext-103_validation.txt", True),
        (wikitext, "wikitext-4.valid.txt", False),
        (lambada, "lambada_test.jsonl.gz", True),
        (lambada, "lambada_test_2.jsonl.gz", False),
    ):
        (tmp_path / name).write_text("x")
        found = zero_shot._from_folder(wanted, tmp_path)
        assert isinstance(found, MissingSet) != fits, name
        (tmp_path / name).unlink()


@pytest.mark.parametrize("num_processes", [1, 2])
def test_a_set_that_does_not_encode_is_left_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_processes: int
) -> None:
    monkeypatch.setattr("text.corpora.preparation._SHARD_CHARACTERS", 4)
    (tmp_path / "ptb.txt").write_text("abc\nabX\n")
    (tmp_path / "pubmed.txt").write_text("abc\n")
    data = TextDataModule(CharacterTokenizer("abc"), 16, "x.txt", num_processes=num_processes)
    (ptb, pubmed), _ = suite.find(data, tmp_path)
    assert isinstance(ptb, UnfitSet) and isinstance(pubmed, SuiteSet)
    assert (ptb.name, ptb.origin) == ("ptb", str(tmp_path / "ptb.txt"))
    assert re.match(r".*ptb.txt: document 2: .* got 'X' at offset 2", ptb.reason)
    assert ptb.published == {"AR": 82.05, "SEDD": 100.09, "MDLM": 95.26}


@pytest.mark.parametrize(("long", "counted"), [("split", 39), ("truncate", 19)])
def test_long_documents_are_split_or_cut_as_in_training(
    tmp_path: Path, long: LongDocuments, counted: int
) -> None:
    (tmp_path / "ag_news.txt").write_text("x" * 36 + "\nabc\n")
    data = TextDataModule(ByteTokenizer(), 16, "x.txt", wrap=False, long_documents=long)
    (found,), _ = suite.find(data, tmp_path)
    assert isinstance(found, SuiteSet)
    _, held = found.dataset.rows(np.arange(len(found.dataset)))
    assert held.sum() == counted and found.num_documents == 2
    assert found.origin.endswith("1 documents cut") == (long == "truncate")
    assert found.units_per_token == (1 if long == "split" else None)
    each = "one document or a piece of one" if long == "split" else "one document"
    assert f"each row has {each}, with at most 16 tokens" in suite.notes(data)


def test_what_is_not_the_tokenizers_fault_is_no_reason_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "ptb.txt").write_bytes(b"ab\xe4\n")
    data = TextDataModule(CharacterTokenizer("abc"), 16, "x.txt")
    with pytest.raises(ValueError, match=r"ptb.txt: must be UTF-8") as refused:
        suite.find(data, tmp_path)
    assert not isinstance(refused.value, UnspellableError)


ROWS = [" = Robert = \n", "", " He was , he said , here . \n", "\n", " 3 @.@ 5 \n"]


@pytest.mark.parametrize("name", ["wikitext", "ptb", "lm1b", "lambada", "ag_news", "pubmed"])
def test_a_set_is_the_same_text_from_any_kind_of_file(tmp_path: Path, name: str) -> None:
    """Rows from the hub may be blank or end in a line break; a .txt file has lines."""
    corpus = next(one.corpora[0] for one in SETS if one.name == name)
    field = PUBLISHED[corpus].column
    kinds = {
        "a": ("txt", "".join(row.rstrip("\n") + "\n" for row in ROWS)),
        "b": ("jsonl", "".join(json.dumps({field: row}) + "\n" for row in ROWS)),
        "c": ("jsonl", "".join(json.dumps({field: row.rstrip("\n")}) + "\n" for row in ROWS)),
        "d": ("txt", "".join(row.rstrip("\n") + "\r\n" for row in ROWS)),
        "e": ("jsonl", "".join(json.dumps({field: row.strip() + " x"}) + "\n" for row in ROWS)),
    }
    texts = {}
    data = TextDataModule(ByteTokenizer(), 64, "x.txt", wrap=False)
    for folder, (kind, content) in kinds.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.{kind}").write_bytes(content.encode())
        (found,), _ = suite.find(data, tmp_path / folder)
        assert isinstance(found, SuiteSet)
        tokens, held = found.dataset.rows(np.arange(len(found.dataset)))
        texts[folder] = [
            data.tokenizer.decode(row[real]) for row, real in zip(tokens, held, strict=True)
        ]
    assert texts["a"] == texts["b"] == texts["c"] == texts["d"] != texts["e"]
    assert len(texts["a"]) == 3, "blank rows are left out"
    published = [DETOKENIZERS[PUBLISHED[corpus].detokenizer](row) for row in ROWS[::2]]
    if name == "wikitext":  # rows of the hub include their line breaks
        assert texts["a"] == published and texts["a"][0].endswith("=\n")
    else:
        assert not any(text.endswith(("\n", " ")) for text in texts["a"])


def test_rows_of_the_hub_are_the_same_text(tmp_path: Path) -> None:
    table = Dataset.from_dict({"text": ROWS})
    cases: tuple[tuple[Edges, list[str]], ...] = (
        ("line", [ROWS[0], ROWS[2], ROWS[4]]),
        ("trimmed", [row.strip() for row in ROWS[::2]]),
        ("kept", ROWS[::2]),
    )
    for edges, wanted in cases:
        assert list(hub_documents(table, "text", edges)) == wanted
        (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": r}) + "\n" for r in ROWS))
        assert list(read_documents(tmp_path / "a.jsonl", Reading(edges=edges))) == wanted
