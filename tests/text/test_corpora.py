import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from text.corpora import published
from text.corpora.detokenizers import DETOKENIZERS
from text.corpora.documents import Reading
from text.corpora.published import PUBLISHED, Published, Slice, local_copy
from text.corpora.sources import Files, Hub, find_part


def documents(given, split="train", reading=None, detokenizer=None) -> list[str]:
    part = find_part(split, given, reading or Reading(), detokenizer)
    return list(part.source.documents())[part.first : part.last]


def test_files_in_the_order_of_the_patterns_each_once(write, tmp_path) -> None:
    for name in ("b1", "b0", "a"):
        write(f"deep/{name}.txt", name)
    write("deep/c.jsonl", ["c"])
    pattern = str(tmp_path / "deep" / "b*.txt")
    assert documents(pattern) == ["b0", "b1"]
    several = [str(tmp_path / "**" / "*.jsonl"), str(tmp_path / "deep" / "b1.txt"), pattern]
    assert documents(several) == ["c", "b1", "b0"]


def test_a_name_with_glob_characters_is_a_file_if_there_is_one(write) -> None:
    assert documents(str(write("a[1].txt", "x"))) == ["x"]


def test_what_is_not_there_is_refused(tmp_path, write) -> None:
    for given in (str(tmp_path / "*.txt"), "wikitext-4", [str(tmp_path / "no.txt")]):
        with pytest.raises(
            FileNotFoundError, match=r"data.valid must be a file, a glob that match"
        ):
            documents(given, "valid")
    with pytest.raises(ValueError, match=r"must be files, got the folder .* such as .*/\*.txt"):
        documents(str(tmp_path))
    with pytest.raises(ValueError, match=r"data.train must be at least one file, got none"):
        documents([])
    with pytest.raises(ValueError, match=r"must end in one of .txt, .jsonl, .parquet"):
        documents(str(write("a.csv", "x")))
    with pytest.raises(ValueError, match=r"data.detokenizer must be one of none, wikitext, ptb"):
        documents(str(write("a.txt", "x")), detokenizer="wiki")


def test_facts_fit_together() -> None:
    names = ["lm1b", "openwebtext", "text8", "wikitext-2", "wikitext-103", "ptb", "lambada"]
    assert list(PUBLISHED) == [*names, "ag_news", "arxiv", "pubmed"]
    for facts in PUBLISHED.values():
        assert facts.detokenizer in DETOKENIZERS
        assert facts.slice(facts.zero_shot) is not None
        for split in ("train", "valid", "test"):
            part = facts.slice(split)
            assert part is None or part.split in facts.splits


def put(name: str, file: str, texts: list[str], column="text") -> None:
    path = local_copy(name) / file
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.table({column: texts}), path)
    else:
        path.write_text("".join(json.dumps({column: text}) + "\n" for text in texts))


def test_a_local_copy_comes_before_the_hub() -> None:
    put("ptb", "valid-1.jsonl", ["b"], "sentence")
    put("ptb", "valid-0.parquet", ["a"], "sentence")
    put("ptb", "test.jsonl", ["c"], "sentence")
    (local_copy("ptb") / "valid.md").write_text("not data")
    assert documents("ptb", "valid") == ["a", "b"]
    assert find_part("valid", "ptb", Reading(), None).detokenizer == "ptb"
    assert find_part("valid", "ptb", Reading(), "none").detokenizer == "none"


def test_the_last_documents_of_openwebtext_validate(monkeypatch) -> None:
    put("openwebtext", "train.jsonl", [f"{i}" for i in range(12)])
    part = find_part("valid", "openwebtext", Reading(), None)
    assert (part.first, part.last) == (-100_000, None)
    part = find_part("train", "openwebtext", Reading(), None)
    assert (part.first, part.last) == (None, -100_000)
    few = {"train": Slice("train", None, -3), "valid": Slice("train", -3, None)}
    facts = PUBLISHED["openwebtext"]
    shorter = Published(facts.hub, facts.config, facts.splits, slices=few)
    monkeypatch.setitem(PUBLISHED, "openwebtext", shorter)
    assert documents("openwebtext") == [f"{i}" for i in range(9)]
    assert documents("openwebtext", "valid") == ["9", "10", "11"]


def test_a_split_that_a_corpus_does_not_have() -> None:
    with pytest.raises(
        ValueError, match=r"got 'lm1b', which only has train, test; remove data.valid"
    ):
        documents("lm1b", "valid")


def test_a_hub_name_without_a_network_says_where_a_copy_would_be_used(cache) -> None:
    with pytest.raises(ValueError, match=r"HF_HUB_OFFLINE is set") as error:
        documents("wikitext-103", "test")
    said = str(error.value)
    assert "'wikitext-103' (Salesforce/wikitext) from the hub" in said and "\n" not in said
    assert said.endswith(f"copy test*.jsonl, .parquet or .txt into {cache}/corpora/wikitext-103")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a folder in the hub's cache format under the name of a published corpus."""
    folder = tmp_path / "hub"
    (folder / "plain").mkdir(parents=True)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "hf")
    header = {
        "config_name": "plain",
        "data_files": [
            {"split": "train", "path": "plain/train-*.parquet"},
            {"split": "validation", "path": "plain/validation-*.parquet"},
        ],
    }
    (folder / "README.md").write_text("---\nconfigs:\n- " + json.dumps(header) + "\n---\n")
    for i in range(2):
        texts = [f"train {i} {j}" for j in range(1500)] + ["  "]
        pq.write_table(
            pa.table({"body": texts, "n": list(range(1501))}),
            folder / "plain" / f"train-{i}.parquet",
        )
    pq.write_table(pa.table({"body": ["valid"]}), folder / "plain" / "validation-0.parquet")
    splits = {"train": "train", "valid": "validation"}
    monkeypatch.setitem(
        PUBLISHED, "ptb", Published(str(folder), "plain", splits, column="body", revision="main")
    )
    return folder


def test_the_hub_through_datasets(hub, cache) -> None:
    part = find_part("train", "ptb", Reading(), None)
    assert isinstance(part.source, Hub)
    found = list(part.source.documents())
    assert found == [f"train {i} {j}" for i in range(2) for j in range(1500)]
    assert documents("ptb", "valid") == ["valid"]
    again = find_part("train", "ptb", Reading(), None).source
    assert again.identity(cache) == part.source.identity(cache)
    assert find_part("valid", "ptb", Reading(), None).source.identity(cache) != again.identity(
        cache
    )


def test_a_column_that_the_hub_has_under_another_name(hub, monkeypatch) -> None:
    facts = PUBLISHED["ptb"]
    monkeypatch.setitem(PUBLISHED, "ptb", Published(facts.hub, facts.config, facts.splits))
    with pytest.raises(ValueError, match="must have the column 'text', got body, n; copy train"):
        documents("ptb")


def test_the_identity_of_files_is_their_content_and_reading(write, cache) -> None:
    cache.mkdir()
    a, b = write("a.txt", "x\n\ny"), write("b.txt", "x\n\ny")

    def identity(paths, **reading):
        return Files(tuple(paths), Reading(**reading)).identity(cache)

    assert identity([a]) == identity([b])
    assert identity([a], field="other") == identity([a])
    others = [identity([a]), identity([a], document="file"), identity([a, b])]
    c = write("c.jsonl", ["x"])
    others += [identity([c]), identity([c], field="body")]
    assert len({tuple(one) for one in others}) == len(others)
    assert published.local_copy("x").parent == cache / "corpora"
