"""From text to text: the main task on text files, from the command line."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from seqdiff.cli.app import main
from seqdiff.run import load

CONFIG = str(Path(__file__).parents[2] / "configs" / "experiment" / "text" / "bytes.yaml")
SMALL = [
    "--data.length=32",
    "--data.batch_size=8",
    "--backbone.d_model=16",
    "--backbone.n_layer=1",
    "--optim.lr=1e-2",
    "--ema_decay=0.9",
    "--trainer.enable_progress_bar=false",
    "--trainer.val_check_interval=null",
    "--experts=null",
]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQDIFF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def train(corpus: Path | str, output: Path, *flags: str) -> list[str]:
    return ["train", CONFIG, f"--data.train={corpus}", f"--output={output}", *SMALL, *flags]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Lines over four letters in which "ab" is always followed by "c": far below log2(5) bits."""
    draws = np.random.default_rng(0).integers(0, 2, (400, 20))
    path = tmp_path / "corpus.txt"
    path.write_text("".join("".join("abc" if d else "d" for d in row) + "\n" for row in draws))
    return path


def test_text_to_text(corpus: Path, tmp_path: Path, capsys) -> None:
    run, numbers = tmp_path / "run", tmp_path / "e.json"
    # What follows "b" depends on two letters, so that experts of order 1 and the network both lack
    # something.
    corpus.write_text(corpus.read_text().replace("d", "cba"))
    assert (
        main(
            train(
                corpus, run, "--trainer.max_steps=150", "--backbone.n_layer=2", "--experts.order=1"
            )
        )
        == 0
    )
    assert main(["evaluate", str(run), "--json", str(numbers), "--evaluations", "8"]) == 0
    content = json.loads(numbers.read_text())
    rows = {row["name"]: row for row in content["rows"]}
    printed = " ".join(capsys.readouterr().out.split())
    assert "rows of 32 tokens are cut from concatenated documents, each followed by" in printed
    assert "all positions count, including separators; rows have no BOS and EOS tokens" in printed
    assert all(note in printed for note in content["notes"]) and len(content["notes"]) == 2
    model = rows.pop("model, upper bound")
    nats_error = model["bits_per_token_error"] * np.log(2)
    assert model["perplexity_error"] == pytest.approx(model["perplexity"] * nats_error)
    assert f"{model['perplexity']:.4f} │ {model['perplexity_error']:.4f} │" in printed
    assert all(row["perplexity_error"] > 0 for row in rows.values())
    parts = rows.pop("network alone"), rows.pop("experts alone")
    assert all(model["bits_per_token"] < part["bits_per_token"] for part in parts)
    assert list(rows)[:5] == [f"n-gram order {k}" for k in range(5)]
    assert list(rows)[5].startswith("interpolated n-gram, order ") and len(rows) == 6
    best = content["difference"]["baseline"]
    assert f"│ model - {best} │" in printed
    assert (
        f"SE is computed from {content['error_degrees'] + 1} groups of neighbours; 95% interval: ±"
        in printed
    )
    assert model["bits_per_token"] < rows["n-gram order 0"]["bits_per_token"] - 0.5
    assert "byte" in content["counted"]

    samples = tmp_path / "s.jsonl"
    draw = ["sample", str(run), "--num=4", "--length=32", "--seed=3", "--out"]
    assert main([*draw, str(samples)]) == 0
    records = [json.loads(line) for line in samples.read_text().splitlines()]
    assert [record["name"] for record in records] == [f"sample_{i}" for i in range(4)]
    assert all(len(record["text"]) == 32 for record in records)
    assert main([*draw, str(tmp_path / "s.txt")]) == 0
    blocks = "".join(f"--- {r['name']} ---\n{r['text']}\n\n" for r in records)
    assert (tmp_path / "s.txt").read_text() == blocks

    for flags in (["--jsonl", str(samples)], ["--text", str(corpus), "--document", "file"]):
        table = tmp_path / "t.tsv"
        assert main(["score", str(run), *flags, "--out", str(table), "--evaluations", "2"]) == 0
        lines = table.read_text().splitlines()
        assert lines[0].split("\t")[3] == "bits/byte"
        assert len(lines) == (5 if "--jsonl" in flags else 2)
        text = records[0]["text"] if "--jsonl" in flags else corpus.read_text()
        length = str(len(text.encode()))
        name = "sample_0" if "--jsonl" in flags else "document_1"
        assert lines[1].split("\t")[:2] == [name, length]


def test_resume_across_epochs_is_bit_identical(corpus: Path, tmp_path: Path) -> None:
    """Ten steps of 8 rows are more than an epoch, and the run stops in the middle of one."""
    short = tmp_path / "short.txt"
    short.write_text("\n".join(corpus.read_text().splitlines()[:30]))
    stopped, straight = tmp_path / "stopped", tmp_path / "straight"
    flat = ("--optim.schedule=constant", "--optim.min_lr=0", "--data.split=[0.8, 0.1, 0.1]")
    assert main(train(short, straight, "--trainer.max_steps=10", *flat)) == 0
    assert main(train(short, stopped, "--trainer.max_steps=5", *flat)) == 0
    rows = len(load(stopped).datamodule.dataset("train"))
    assert 5 * 8 % rows and 10 * 8 > rows + 8
    halfway = (stopped / "model.safetensors").read_bytes()
    assert main(["train", "--resume", str(stopped), "--trainer.max_steps", "10"]) == 0
    resumed = (stopped / "model.safetensors").read_bytes()
    assert resumed == (straight / "model.safetensors").read_bytes()
    assert resumed != halfway


def test_sentences_a_row_are_trained_and_scored(corpus: Path, tmp_path: Path) -> None:
    """Rows of padded documents in training, validation and evaluation."""
    run, numbers = tmp_path / "run", tmp_path / "e.json"
    flags = ("--data.wrap=false", "--data.length=64", "--trainer.max_steps=20")
    assert main(train(corpus, run, *flags, "--trainer.val_check_interval=10")) == 0
    assert main(["evaluate", str(run), "--json", str(numbers), "--evaluations", "2"]) == 0
    dataset = load(run).datamodule.dataset("test")
    _, loss_mask = dataset.rows(np.arange(len(dataset)))
    lengths = dataset.store.lengths[dataset.documents]
    assert loss_mask.sum(axis=1).tolist() == lengths.tolist() and lengths.max() < 64


def test_the_tokenizer_stands_in_the_run(corpus: Path, tmp_path: Path, fails) -> None:
    run = tmp_path / "run"
    characters = ["--data.tokenizer=text.tokenizers.CharacterTokenizer"]
    characters += ["--data.tokenizer.characters=abcd\n", "--trainer.max_steps=1"]
    assert main(train(corpus, run, *characters)) == 0
    config = yaml.safe_load((run / "run.yaml").read_text())
    tokenizer = config["data"]["init_args"]["tokenizer"]
    assert tokenizer["class_path"].endswith("CharacterTokenizer")
    assert load(run).tokenizer.encode("ab\n").tolist() == [0, 1, 4]
    tokenizer["init_args"]["characters"] = "bacd\n"
    (run / "run.yaml").write_text(yaml.safe_dump(config))
    assert "must describe the tokenizer it was trained with" in fails(["evaluate", str(run)])
    (tmp_path / "b.fa").write_text(">a\nACGT\n")
    config["data"]["init_args"]["tokenizer"]["init_args"]["characters"] = "abcd\n"
    (run / "run.yaml").write_text(yaml.safe_dump(config))
    table = ["--out", str(tmp_path / "t.tsv")]
    said = fails(["score", str(run), "--fasta", str(tmp_path / "b.fa"), *table])
    assert "must be scored by a model of DNA" in said
    (tmp_path / "b.txt").write_text("abc\nabx\n")
    said = fails(["score", str(run), "--text", str(tmp_path / "b.txt"), *table])
    assert "got 'x' at offset 2; add it to data.tokenizer.characters" in said
    assert "must end in .jsonl" in fails(["score", str(run), "--jsonl", str(corpus), *table])
    assert not (tmp_path / "t.tsv").exists()


@pytest.mark.usefixtures("toy_writer")
def test_text_is_not_scored_by_a_model_of_something_else(trained: Path, tmp_path: Path) -> None:
    from text.corpora.documents import TextReader

    (tmp_path / "a.txt").write_text("abc\n")
    run = load(trained)
    with pytest.raises(ValueError, match=r"score.text requires a run on text, got a run whose"):
        TextReader(document="line").read([tmp_path / "a.txt"], run.tokenizer)


def test_documents_are_numbered_through_all_files(tmp_path: Path) -> None:
    from text.corpora.documents import JSONLinesReader, TextReader
    from text.tokenizers import CharacterTokenizer

    tokenizer = CharacterTokenizer("abcd")
    for name, content in (("0.txt", "ab\ncd"), ("1.txt", "d\n"), ("2.txt", "\n")):
        (tmp_path / name).write_text(content)
    (tmp_path / "0.jsonl").write_text('{"text": "a", "name": "x"}\n')
    (tmp_path / "1.jsonl").write_text('{"text": "b"}\n')
    files = [tmp_path / "0.txt", tmp_path / "1.txt"]
    found = TextReader().read(files, tokenizer)
    assert [record.name for record in found] == ["document_1", "document_2", "document_3"]
    assert [tokenizer.decode(record.readings[0]) for record in found] == ["ab", "cd", "d"]
    rows = JSONLinesReader().read([tmp_path / "0.jsonl", tmp_path / "1.jsonl"], tokenizer)
    assert [record.name for record in rows] == ["x", "document_2"]
    with pytest.raises(ValueError, match=r"2\.txt: must hold a document with text, got none"):
        TextReader().read([*files, tmp_path / "2.txt"], tokenizer)


BAD = [
    ("a.txt", b"good\nb\xe4d\n", (), "a.txt: must be UTF-8, got byte 0xe4 at offset 6 (line 2)"),
    ("a.txt", b"\n \n", (), "a.txt: must hold at least one document with text, got none"),
    ("a.jsonl", b'{"text": "x"}\n{"t": 1}\n', (), "a.jsonl:2: must have text in the field 'text'"),
    ("a.jsonl", b"x", ("--data.field=b",), "a.jsonl:1: must be a JSON object, got: Expecting"),
    ("a.txt", b"x", ("--data.train=no*.txt",), "data.train must be a file, a glob that matches"),
    (
        "a.csv",
        b"x",
        (),
        "a.csv: must end in one of .txt, .jsonl, .parquet, .fa, .fasta, .faa, .fna, "
        "optionally with .gz",
    ),
    (
        "a.txt",
        b"x" * 40 + b"\ny\n",
        ("--data.wrap=false", "--data.split=[1, 0, 0]"),
        "must fit every document (32 of 32 tokens are for text), got 1 longer ones in",
    ),
    ("a.txt", b"x" * 9, ("--data.split=[1, 0, 0]",), "the train split has no row of 32 tokens"),
    ("a.txt", b"x", ("--data.train=wikitext-103",), "corpora/wikitext-103"),
    (
        "a.txt",
        b"x",
        ("--data.tokenizer=text.tokenizers.GPT2Tokenizer",),
        "cache/tokenizers/gpt2",
    ),
    (
        "a.txt",
        b"x",
        (
            "--data.tokenizer=text.tokenizers.BertTokenizer",
            "--data.tokenizer.vocabulary=/no",
        ),
        "BertTokenizer.vocabulary must be a folder with vocab.txt, got /no; check the path",
    ),
    (
        "a.txt",
        b"ab\nC\n",
        ("--data.tokenizer=text.tokenizers.Text8Tokenizer",),
        "a.txt: document 2: Text8Tokenizer.encode.string must hold only the space and a to z",
    ),
    ("a.txt", b"x", ("--data.document=page",), "page"),
    ("a.txt", b"x", ("--data.detokenizer=x",), "data.detokenizer must be one of none, wikitext"),
    ("a.txt", b"x", ("--data.length=2",), "TextDataModule.length must be at least 3, got 2"),
    (
        "a.txt",
        b"x",
        ("--data.valid={file}",),
        "data.valid must hold different text from data.train",
    ),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("name", "content", "flags", "said"), BAD)
def test_bad_input_is_one_line_and_leaves_nothing(
    tmp_path: Path,
    fails: Callable[[list[str]], str],
    name: str,
    content: bytes,
    flags: tuple[str, ...],
    said: str,
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    given = [flag.format(file=path) for flag in flags]
    assert said in fails(train(path, tmp_path / "run", "--trainer.max_steps=2", *given))
    assert not (tmp_path / "run").exists()
    prepared = list((tmp_path / "cache" / "text").glob("*/*.shard"))
    assert not prepared or "row" in said or "document" in said


@pytest.mark.slow
def test_real_text(real_data: Path, tmp_path: Path) -> None:
    """War and Peace: a hundred small batches must beat the byte composition."""
    run, numbers = tmp_path / "run", tmp_path / "e.json"
    parts = [f"--data.{s}={real_data}/text/wap.{s}.txt.gz" for s in ("valid", "test")]
    flags = ("--trainer.max_steps=200", "--data.batch_size=16", "--data.length=64")
    assert main(train(real_data / "text" / "wap.train.txt.gz", run, *parts, *flags)) == 0
    assert main(["evaluate", str(run), "--json", str(numbers), "--evaluations", "2"]) == 0
    rows = {row["name"]: row for row in json.loads(numbers.read_text())["rows"]}
    model = rows["model, upper bound"]
    composition = rows["n-gram order 0"]["bits_per_token"]
    assert model["bits_per_token"] + 5 * model["bits_per_token_error"] < composition


NAMES = ("Bert", "Byte", "Character", "GPT2", "JSON", "Text8")
TOKENIZERS = [f"{name}Tokenizer" for name in NAMES]


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--data.tokenizer=CharTokenizer", "import path string: CharTokenizer; choose from "),
        (
            "--data.tokenizer=text.tokenizers.characters.ByteTokeniser",
            "has no attribute 'ByteTokeniser'; choose from ",
        ),
        ("--data.tokenizer=collections.OrderedDict", "a subclass of StringTokenizer; choose from "),
        ("--data.tokenizer.vocabulary=x", "'vocabulary' is not accepted; drop it, the class takes"),
        ("--data.detokenizer=[ptb]", """twice, as in '"[ptb]"'; in YAML once: "[ptb]\""""),
        ("--data.length=long", "data.length must be an integer, got long"),
    ],
)
def test_a_misspelt_tokenizer_is_answered_by_the_choices(
    corpus: Path, tmp_path: Path, fails: Callable[[list[str]], str], flag: str, said: str
) -> None:
    message = fails([*train(corpus, tmp_path / "run"), flag])
    assert said in message
    choices = message.partition("; choose from ")[2].split(", ")
    if "choose from" in said:
        assert {f"text.tokenizers.{name}" for name in TOKENIZERS} <= set(choices)
        assert not {
            name for name in choices if name.endswith((".StringTokenizer", ".SubwordTokenizer"))
        }
    assert not (tmp_path / "run").exists()
