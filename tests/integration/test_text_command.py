"""Commands on text runs: options, folders, and output on the terminal."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tokenizers import Tokenizer, models

from seqdiff.cli.app import main
from seqdiff.run import load
from tests.integration.test_text_run import CONFIG, SMALL, train
from text.tokenizers.subwords import JSONTokenizer


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQDIFF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"abc d {'abc ' * (i % 7)}d {i}\n" for i in range(300)))
    return path


@pytest.mark.usefixtures("unchecked")
def test_an_error_stands_alone_and_a_success_says_no_blank_line(
    corpus: Path, tmp_path: Path, capsys
) -> None:
    causal = ["--backbone=seqdiff.backbones.AutoregressiveTransformer", "--backbone.d_model=16"]
    causal += ["--backbone.n_layer=1", "--backbone.n_heads=2", "--preset=ar"]
    small = [flag for flag in SMALL if not flag.startswith("--backbone")]
    given = [f"--data.train={corpus}", f"--output={tmp_path / 'run'}", "--trainer.max_steps=1"]
    assert main(["train", CONFIG, *given, *small, *causal]) == 0
    run = tmp_path / "run"
    where = f"seqdiff: metrics: {run / 'metrics.csv'}; tensorboard --logdir {run}\n"
    assert capsys.readouterr().err == where
    draw = ["sample", str(tmp_path / "run"), "--num=2", "--length=8", "--seed=1"]
    draw += [f"--out={tmp_path / 's.txt'}"]
    assert main([*draw, "--sampler=ancestral"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("seqdiff: error: ") and said.count("\n") == 1
    assert main(draw) == 0
    assert capsys.readouterr().err == "", "progress that takes less than 30 s"
    (tmp_path / "empty.txt").write_text("\n")
    assert main(train(tmp_path / "empty.txt", tmp_path / "none")) == 2
    said = capsys.readouterr().err
    assert said.startswith("seqdiff: error: ") and said.count("\n") == 1


def test_a_special_token_in_brackets_can_be_typed(
    tmp_path: Path, corpus: Path, fails: Callable[[list[str]], str]
) -> None:
    words = {word: i for i, word in enumerate(["[UNK]", "[CLS]", "[SEP]", "abc", "d"])}
    engine = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    engine.save(str(tmp_path / "tokenizer.json"))
    given = train(corpus, tmp_path / "run", "--trainer.max_steps=1", "--data.length=8")
    given += ["--data.tokenizer=JSONTokenizer", "--data.tokenizer.bos", "'[CLS]'"]
    given += ["--data.tokenizer.eos", '"[SEP]"', "--data.tokenizer.vocabulary", str(tmp_path)]
    assert main(given) == 0
    run = load(tmp_path / "run")
    assert isinstance(run.tokenizer, JSONTokenizer) and run.tokenizer.frame == (1, 2)
    assert main(["evaluate", str(tmp_path / "run"), "--evaluations=2"]) == 0
    given[given.index("'[CLS]'")] = "[CLS]"
    assert """quote a string in brackets twice, as in '"[CLS]"'""" in fails(given)


def test_a_run_does_not_depend_on_the_folder_it_was_typed_in(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Existing files, globs and vocabularies become absolute; names of the hub stay unchanged."""
    words = "\n".join(["[UNK]", "[CLS]", "[SEP]", "##a", "a", "b", "c", "d"])
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "vocab.txt").write_text(words)
    (tmp_path / "line").mkdir()  # also a value of data.document
    (tmp_path / "gpt2").mkdir()  # a folder without vocabulary files
    (tmp_path / "v.txt").write_text("abcd " * 99)
    monkeypatch.chdir(tmp_path)
    tokenizer = ["--data.tokenizer=BertTokenizer", "--data.tokenizer.vocabulary=words"]
    given = ["--data.valid=v.txt", "--trainer.max_steps=1", "--data.train=['corp*.txt']"]
    assert main(train("corpus.txt", Path("run"), *tokenizer, *given)) == 0
    options = yaml.safe_load((tmp_path / "run" / "run.yaml").read_text())["data"]["init_args"]
    assert options["train"] == [str(tmp_path / "corp*.txt")]
    assert options["valid"] == str(tmp_path / "v.txt")
    assert options["tokenizer"]["init_args"]["vocabulary"] == str(tmp_path / "words")
    assert options["document"] == "line"
    assert (
        main(
            train(
                "corpus.txt", Path("hub"), "--trainer.max_steps=0", "--data.tokenizer=GPT2Tokenizer"
            )
        )
        == 0
    )
    options = yaml.safe_load((tmp_path / "hub" / "run.yaml").read_text())["data"]["init_args"]
    assert options["tokenizer"]["init_args"]["vocabulary"] == "gpt2"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["evaluate", str(tmp_path / "run"), "--evaluations=2"]) == 0
