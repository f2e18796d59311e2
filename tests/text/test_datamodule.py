import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from seqdiff.checks import check_fractions
from text.corpora.datamodule import TextDataModule
from text.corpora.published import PUBLISHED, Published, Slice, local_copy
from text.corpora.splits import deal
from text.tokenizers.characters import ByteTokenizer, CharacterTokenizer
from text.tokenizers.subwords import BertTokenizer

LINES = [f"{i:03d} " + "word " * (i % 9) for i in range(400)]


@pytest.fixture
def lines(write) -> Path:
    return write("lines.txt", "\n".join(LINES))


def module(train, **options) -> TextDataModule:
    options = {"batch_size": 4, "length": 32, "tokenizer": ByteTokenizer()} | options
    return TextDataModule(train=str(train), **options)


def whole(data: TextDataModule, split) -> str:
    """The text of a split, from its evaluation loader."""
    batches = list(data.evaluation_loader(split))
    return data.tokenizer.decode(torch.cat([b.tokens[b.loss_mask] for b in batches]).numpy())


def test_a_split_by_documents(lines) -> None:
    data = module(lines, split=(0.6, 0.2, 0.2))
    found = {split: whole(data, split).splitlines() for split in ("valid", "test")}
    documents = {split: set(texts) for split, texts in found.items()}
    # Training drops the last partial row, so its documents are read from the dataset.
    train = data.dataset("train")
    of_train = {
        data.tokenizer.decode(train.store.read(int(i), 0, int(train.store.lengths[i])))
        for i in train.documents
    }
    assert of_train | documents["valid"] | documents["test"] == set(LINES)
    assert sum(map(len, (of_train, documents["valid"], documents["test"]))) == len(LINES)
    # 400 draws at 0.2 lie outside of [38, 125] with probability below 1e-6 (binomial).
    assert all(38 <= len(texts) <= 125 for texts in documents.values())
    assert [line for line in LINES if line in documents["test"]] == found["test"]


def test_equal_documents_go_together_and_seeds_deal_anew() -> None:
    hashes = np.random.default_rng(0).integers(0, 2**63, 2000).astype(np.uint64)
    owner = deal(np.concatenate([hashes, hashes]), 0.1, 0.3, seed=0)
    assert np.array_equal(owner[:2000], owner[2000:])
    assert np.array_equal(deal(hashes[5:9], 0.1, 0.3, seed=0), owner[5:9])
    assert not np.array_equal(deal(hashes, 0.1, 0.3, seed=1), owner[:2000])
    # Binomial(2000, p): 1e-6 is at 4.9 standard deviations.
    for place, share in ((1, 0.1), (2, 0.3)):
        error = 4.9 * np.sqrt(2000 * share * (1 - share))
        assert abs((owner[:2000] == place).sum() - 2000 * share) < error
    assert not deal(hashes, 0.0, 0.0, seed=0).any()
    assert (deal(hashes, 0.0, 1.0, seed=0) == 2).all()
    for wrong in ((0.5, 0.5, 0.5), (1.2, -0.1, -0.1), (float("nan"), 0.5, 0.5)):
        with pytest.raises(ValueError, match=r"split must be three fractions .* got \["):
            check_fractions(wrong)


def test_files_for_each_split(lines, write) -> None:
    data = module(lines, valid=str(write("v.txt", "valid")), test=str(write("t.txt", "test")))
    assert whole(data, "valid") == "valid\n" and whole(data, "test") == "test\n"
    assert len(data.dataset("train").documents) == len(LINES)
    only = module(lines, valid=str(write("v.txt", "valid")), split=(0.9, 0.1, 0.0))
    assert len(only.dataset("train").documents) == len(LINES)
    with pytest.raises(ValueError, match=r"there is no test split, only train and valid; evaluate"):
        only.dataset("test")


def test_one_file_in_two_splits_is_refused(lines, tmp_path) -> None:
    again = str(tmp_path / "." / "lines.txt")
    with pytest.raises(
        ValueError, match=r"data.test must hold different text from data.train, got .*li"
    ):
        module(lines, test=again).dataset("train")
    with pytest.raises(ValueError, match=r"in both; set data.test to other files, or rem"):
        module(lines, test=[again, str(tmp_path / "*.txt")]).dataset("train")


def test_a_copy_of_the_training_text_is_refused(lines, write) -> None:
    copy = write("copy/other.txt", "\n".join(LINES))
    with pytest.raises(ValueError, match=r"data.valid must hold .*lines.txt and its copy .*other"):
        module(lines, valid=str(copy)).dataset("train")
    packed = write("packed.txt.gz", gzip.compress(lines.read_bytes()))
    with pytest.raises(ValueError, match=r"data.test .*lines.txt and .*packed.txt.gz with the sam"):
        module(lines, test=str(packed)).dataset("train")
    table = write("table.jsonl", LINES[::-1])
    with pytest.raises(ValueError, match=r"data.valid .*lines.txt and .*table.jsonl with the"):
        module(lines, valid=str(table)).dataset("train")
    less = write("less.jsonl", LINES[:-1])
    assert len(module(lines, valid=str(less), split=(1.0, 0.0, 0.0)).dataset("valid"))


def batches(data: TextDataModule, steps: int, **where):
    return [b for _, b in zip(range(steps), data.training_loader(**where), strict=False)]


@pytest.mark.parametrize("wrap", [True, False], ids=["packed", "documents"])
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_devices_read_each_row_of_an_epoch_once(lines, devices: int, wrap: bool) -> None:
    """Packed rows are cut anew in each epoch, in the same way on every device."""
    options = {"wrap": wrap, "long_documents": "refuse" if wrap else "split"}
    rows, seed = module(lines, **options).dataset("train"), 0
    steps = -(-2 * len(rows) // 8)
    data = module(lines, **options, batch_size=8 // devices)
    parts = [batches(data, steps, rank=rank, world_size=devices) for rank in range(devices)]
    seen = torch.cat([batch.tokens for step in zip(*parts, strict=True) for batch in step])
    for number in range(2):
        wanted, _ = rows.epoch(seed, number).rows(np.arange(len(rows)))
        found = seen[number * len(rows) : (number + 1) * len(rows)]
        assert sorted(found.tolist()) == sorted(wanted.tolist())


@pytest.mark.parametrize("devices", [2, 4])
def test_devices_count_each_position_of_validation_once(lines, devices: int) -> None:
    """Also in the last row, which is padded."""
    data = module(lines, split=(0.6, 0.2, 0.2))
    parts = [
        batch.tokens[batch.loss_mask]
        for rank in range(devices)
        for batch in data.evaluation_loader("valid", rank=rank, world_size=devices)
    ]
    assert sorted(torch.cat(parts).tolist()) == sorted(data.tokenizer.encode(whole(data, "valid")))


def test_the_stream_goes_on_anywhere_and_each_epoch_is_cut_anew(lines) -> None:
    data = module(lines)
    rows = len(data.dataset("train"))
    steps = 2 * rows // 4 + 3
    straight = torch.cat([b.tokens for b in batches(data, steps)])
    resumed = torch.cat([b.tokens for b in batches(module(lines), steps - 100, start=400)])
    assert torch.equal(straight[400:], resumed)
    workers = torch.cat([b.tokens for b in batches(module(lines, num_workers=2), steps)])
    assert torch.equal(straight, workers)
    first, second = (
        sorted(map(tuple, straight[n * rows : (n + 1) * rows].tolist())) for n in range(2)
    )
    assert first != second, "not only their order differs"
    other = module(lines)
    other.seed = 1
    assert not torch.equal(straight[:4], batches(other, 1)[0].tokens)


@pytest.fixture
def bert(tmp_path: Path) -> BertTokenizer:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "d"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    return BertTokenizer(str(tmp_path / "vocab.txt"))


def test_wrapped_rows_by_hand(bert, write) -> None:
    train = write("train.txt", "a b c d " * 9)
    data = module(
        train,
        tokenizer=bert,
        length=6,
        split=(1.0, 0.0, 0.0),
        valid=str(write("a.txt", "a b c\nd\na a")),
        eval_batch_size=9,
    )
    (batch,) = data.evaluation_loader("valid")
    pad = 8
    assert batch.tokens.tolist() == [
        [2, 4, 5, 6, 3, 3],
        [2, 7, 3, 4, 4, 3],
        [2, 3, 3, pad, pad, pad],
    ]
    assert batch.padding.tolist() == (batch.tokens == pad).tolist()
    assert torch.equal(batch.loss_mask, ~batch.padding)


def test_a_document_a_row(bert, write) -> None:
    options = {"tokenizer": bert, "wrap": False, "split": (1.0, 0.0, 0.0), "valid": None}
    path = write("a.txt", "a b c\nd\na a")
    data = module(path, length=5, **options)
    (batch,) = batches(data, 1)
    assert sorted(map(tuple, batch.tokens[:3].tolist())) == [
        (2, 4, 4, 3, 8),
        (2, 4, 5, 6, 3),
        (2, 7, 3, 8, 8),
    ]
    assert torch.equal(batch.loss_mask, ~batch.padding)
    with pytest.raises(
        ValueError, match=r"must fit every document \(2 of 4 tokens are for text\)"
    ) as e:
        module(path, length=4, **options).dataset("train")
    assert "got 1 longer ones in" in str(e.value) and "the longest with 3 tokens; inc" in str(
        e.value
    )
    cut = module(path, length=4, long_documents="truncate", **options)
    assert (2, 4, 5, 3) in set(map(tuple, batches(cut, 1)[0].tokens.tolist()))
    split = module(path, length=4, long_documents="split", **options)
    rows = split.dataset("train").rows(np.arange(len(split.dataset("train"))))[0].tolist()
    assert sorted(rows) == [[2, 4, 4, 3], [2, 4, 5, 3], [2, 6, 3, 8], [2, 7, 3, 8]]


def test_a_published_corpus_brings_its_splits(monkeypatch, tmp_path) -> None:
    facts = Published(
        "x/y",
        "z",
        {"train": "train"},
        detokenizer="ptb",
        slices={"train": Slice("train", None, -2), "valid": Slice("train", -2)},
    )
    monkeypatch.setitem(PUBLISHED, "ptb", facts)
    folder = local_copy("ptb")
    folder.mkdir(parents=True)
    texts = [f"line {i} does n't" for i in range(9)]
    content = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (folder / "train.jsonl").write_text(content)
    data = module("ptb", split=(1.0, 0.0, 0.0))
    assert whole(data, "valid") == "line 7 doesn't\nline 8 doesn't\n"
    assert len(data.dataset("train").documents) == 7
    raw = module("ptb", detokenizer="none", split=(1.0, 0.0, 0.0))
    assert whole(raw, "valid") == "line 7 does n't\nline 8 does n't\n"


def test_the_interpolated_model_is_chosen_on_validation_alone(write) -> None:
    """Broken twin: chooses on the split that is scored, where longer contexts score better."""
    generator = np.random.default_rng(0)
    phrases = ["".join(generator.choice(list("abcdefgh"), 12)) for _ in range(24)]
    told = ["".join(generator.choice(phrases, 500)) for _ in range(2)]
    noise = ["".join(generator.choice(list("abcdefgh"), 6000)) for _ in range(2)]
    files = {text: str(write(f"{i}.txt", text)) for i, text in enumerate((*told, *noise))}

    def chosen(valid: str, test: str) -> str:
        options = {
            "valid": files[valid],
            "test": files[test],
            "tokenizer": CharacterTokenizer("abcdefgh"),
        }
        return list(module(files[told[0]], **options).baselines("test"))[-1]

    assert chosen(noise[0], told[1]) == chosen(noise[0], noise[1]) == "interpolated n-gram, order 0"
    assert chosen(told[1], noise[0]) != "interpolated n-gram, order 0"


def test_baselines_are_of_the_training_rows(write, bert) -> None:
    path = write("a.txt", "\n".join("ab" * 20 for _ in range(40)))
    data = module(path, valid=str(write("v.txt", "ab" * 40)), split=(1.0, 0.0, 0.0))
    found = data.baselines("valid")
    assert list(found)[:5] == [f"n-gram order {k}" for k in range(5)]
    [name] = list(found)[5:]
    assert name.startswith("interpolated n-gram, order ")
    assert found["n-gram order 0"].nats_per_token == pytest.approx(np.log(2), abs=0.1)
    assert found["n-gram order 1"].nats_per_token < 0.2
    assert found[name].nats_per_token < 0.2
    counted = [batch.loss_mask.sum(dim=1) for batch in data.evaluation_loader("valid")]
    for baseline in found.values():
        assert baseline.num_tokens.tolist() == torch.cat(counted).tolist()
    words = module(
        write("w.txt", "a b a b a b " * 20), tokenizer=bert, length=6, split=(1.0, 0.0, 0.0)
    )
    assert list(words.baselines("train")) == [f"n-gram order {k}" for k in range(5)]


def test_text_is_not_read_before_a_split_is(tmp_path) -> None:
    data = module(tmp_path / "no.txt")
    assert data.tokenizer.vocab_size == 256 and data.token_name == "byte"
    assert data.context_length == data.length
    assert module(tmp_path / "no.txt", tokenizer=CharacterTokenizer("ab")).token_name == "character"
    with pytest.raises(FileNotFoundError, match=r"data.train must be a file"):
        data.dataset("train")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"length": 2}, r"TextDataModule.length must be at least 3, got 2; set data.length"),
        ({"num_processes": 0}, r"num_processes must be at least 1, got 0; set data.num_processes"),
        ({"batch_size": 0}, r"TextDataModule.batch_size must be at least 1, got 0"),
        ({"split": (0.5, 0.1, 0.1)}, r"split must be three fractions"),
        ({"long_documents": "drop"}, r"must be one of refuse, truncate, split, got 'drop'"),
        ({"document": "page"}, r"document must be one of file, line, paragraph, got 'page'; set"),
    ],
)
def test_numbers_out_of_range(unchecked, options, said) -> None:
    with pytest.raises(ValueError, match=said):
        module("a.txt", **options)


def test_a_split_without_a_row(unchecked, lines, write) -> None:
    with pytest.raises(ValueError, match=r"the train split has no row of 100000 tokens, got 3\d\d"):
        module(lines, length=100_000).dataset("train")
    one = write("one.txt", "a single document " * 9)
    with pytest.raises(ValueError, match=r"split has no row .* got 0 documents .* to line or para"):
        module(one, document="file").dataset("train")
    with pytest.raises(ValueError, match=r"must be one of train, valid, test, got 'dev'"):
        module(lines).dataset("dev")
