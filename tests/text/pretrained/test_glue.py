"""GLUE: the published files, metrics computed by hand, and fine-tuning that learns."""

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from transformers import BertTokenizerFast

from seqdiff.backbones import HubBackbone
from seqdiff.cli.app import main
from tests.integration.conftest import BASE, override
from tests.text.pretrained.tiny_bert import VOCAB, save_bert
from text.evaluation import glue
from text.evaluation.glue import (
    METRICS,
    Classifier,
    Encoded,
    Recipe,
    _batches,
    build_table,
    encode,
    fine_tune,
    measure,
    predict,
    summarise,
)
from text.evaluation.glue_tasks import TASKS, Example, read_task

HERE = "tests.text.pretrained.tiny_bert"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def backbone(checkpoint: Path) -> HubBackbone:
    return HubBackbone.from_hub(checkpoint)


# Reading.


@pytest.mark.parametrize(
    ("name", "file", "count", "ones", "first"),
    [
        ("sst2", "sst2_train", 67349, 37569, ("hide new secretions from the parental units", 0)),
        ("sst2", "sst2_dev", 872, 444, ("it 's a charming and often affecting journey .", 1)),
        ("sst2", "sst2_test_labeled", 1821, 904, ("uneasy mishmash of styles and genres .", 0)),
        ("cola", "cola_in_domain_dev", 527, 365, ("The sailors rode the breeze clear of the r", 1)),
        ("rte", "rte_dev", 277, 131, ("Dana Reeve, the widow of the actor Christopher Reeve", 1)),
    ],
)
def test_the_published_files_are_read_whole(real_data: Path, name, file, count, ones, first):
    examples = read_task("glue.dev", TASKS[name], real_data / "text" / f"{file}.tsv.gz")
    assert len(examples) == count
    assert sum(example.label for example in examples) == ones
    assert examples[0].first.startswith(first[0]) and examples[0].label == first[1]
    assert all(example.first for example in examples)
    assert all((example.second is None) == (name != "rte") for example in examples)


@pytest.mark.parametrize(("name", "size"), [("sst2", 872), ("cola", 1043), ("rte", 277)])
def test_another_dev_set_than_the_published_one_is_said(name: str, size: int) -> None:
    results = {1e-5: [{"dev": [dict.fromkeys(METRICS, 50.0)]}]}
    for count in (size, 527):
        caption = " ".join(build_table(TASKS[name], results, "t", count)[2])
        assert ("NOT comparable" in caption) == (count != size)
        assert (f"dev set has 527 examples and the published one has {size:,}" in caption) == (
            count != size
        )


def put(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_lines_are_read_as_they_are(tmp_path: Path) -> None:
    """A quote that is never closed, a carriage return, and both names of RTE's classes."""
    sst2 = 'sentence\tlabel\r\n" a film\t1\r\n it is " bad \t0\r\n'
    found = read_task("glue.dev", TASKS["sst2"], put(tmp_path / "a.tsv", sst2))
    assert found == [Example('" a film', None, 1), Example('it is " bad', None, 0)]
    cola = "gj04\t1\t\tA dog.\ngj04\t0\t*\tDog a.\n"
    packed = put(tmp_path / "a.tsv.gz", gzip.compress(cola.encode()))
    found = read_task("glue.dev", TASKS["cola"], packed)
    assert found == [Example("A dog.", None, 1), Example("Dog a.", None, 0)]
    rte = "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tnot_entailment\n1\tc\td\tentailment\n"
    found = read_task("glue.dev", TASKS["rte"], put(tmp_path / "b.tsv", rte))
    assert found == [Example("a", "b", 1), Example("c", "d", 0)]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("cola", "sentence\tlabel\na\t1\n", "and a label of CoLA on each line, got 2 columns in"),
        ("sst2", "a film\t1\n", r"must start with the line 'sentence\\tlabel', as SST-2 does"),
        ("sst2", "sentence\tlabel\na film\t1\na\tyes\n", "got 'yes' in line 3 of"),
        (
            "sst2",
            "sentence\tlabel\na film\t1\n",
            "examples of both classes, got fewer classes in 1 lines",
        ),
        ("sst2", b"sentence\tlabel\ncaf\xe9\t1\n", "must be UTF-8, got a bad byte at offset 18"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: str | bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_task("glue.dev", TASKS[name], put(tmp_path / "a.tsv", content))


# Measuring.


def test_metrics_are_what_their_names_say() -> None:
    """Computed by hand from a table of 5 true and 2 false ones, 3 false and 6 true zeros."""
    truth = np.array([1] * 5 + [0] * 2 + [1] * 3 + [0] * 6)
    found = np.array([1] * 7 + [0] * 9)
    matthews = (5 * 6 - 2 * 3) / math.sqrt(7 * 8 * 8 * 9)
    expected = {"accuracy": 100 * 11 / 16, "matthews": 100 * matthews, "f1": 100 * 10 / 15}
    assert measure(truth, found) == pytest.approx(expected)
    constant = measure(truth, np.zeros_like(truth))
    assert constant["matthews"] == constant["f1"] == 0 and constant["accuracy"] == 50


def test_the_best_epoch_is_chosen_by_the_metric_of_the_task() -> None:
    epochs = [
        {"accuracy": 70.0, "matthews": 9.0, "f1": 1.0},
        {"accuracy": 80.0, "matthews": 5.0, "f1": 2.0},
        {"accuracy": 80.0, "matthews": 7.0, "f1": 3.0},
    ]
    by_accuracy = summarise(TASKS["sst2"], 1e-5, [epochs, epochs[:1]])
    assert by_accuracy.values.tolist() == [80, 70] and by_accuracy.epochs == [2, 1]
    assert by_accuracy.others == {"matthews": 7.0, "f1": 1.5}
    assert by_accuracy.standard_error == pytest.approx(5.0)
    by_matthews = summarise(TASKS["cola"], 1e-5, [epochs])
    assert by_matthews.mean == 9 and by_matthews.epochs == [1]
    assert by_matthews.standard_error is None


# Learning.


def sentences(count: int, seed: int) -> list[Example]:
    """Draw words; the class is whether ``good`` is among them."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        label = int(rng.integers(2))
        words = list(rng.choice(["film", "a", "the", "is", "dog"], rng.integers(2, 9)))
        words[int(rng.integers(len(words)))] = "good" if label else "bad"
        found.append(Example(" ".join(words), None, label))
    return found


def test_encoding_marks_pairs_and_cuts_the_longer_one(checkpoint: Path) -> None:
    tokenizer = BertTokenizerFast.from_pretrained(checkpoint)
    pair = encode(tokenizer, [Example("a good dog", "the film", 1)], 128)
    spelled = [VOCAB[i] for i in pair.tokens[0]]
    assert spelled == "[CLS] a good dog [SEP] the film [SEP]".split()
    assert pair.segments[0] == [0] * 5 + [1] * 3
    short = encode(tokenizer, [Example("a good dog is a dog", "the film", 1)], 8)
    spelled = [VOCAB[i] for i in short.tokens[0]]
    assert spelled == "[CLS] a good dog [SEP] the film [SEP]".split()
    alone = encode(tokenizer, [Example("films", None, 0)], 8)
    assert [VOCAB[i] for i in alone.tokens[0]] == "[CLS] film ##s [SEP]".split()
    assert alone.segments == [[0] * 4]


def test_predictions_do_not_depend_on_the_batch(checkpoint: Path, backbone: HubBackbone) -> None:
    """Padding is not attended to, and the last batch is not dropped."""
    tokenizer = BertTokenizerFast.from_pretrained(checkpoint)
    data = encode(tokenizer, sentences(23, 1), 24)
    torch.manual_seed(0)
    model = Classifier(backbone.encoder, backbone.width).eval()
    torch.nn.init.normal_(model.head.weight)
    torch.nn.init.normal_(model.pooler.weight)
    with torch.no_grad():
        seen = torch.cat([model(*inputs) for *inputs, _ in _batches(data, np.arange(23), 1)])
        model.head.bias.copy_(-seen.median(dim=0).values)
    alone = predict(model, data, 1).argmax(axis=-1)
    assert len(alone) == 23 and 0 < alone.mean() < 1
    assert np.array_equal(predict(model, data, 4).argmax(axis=-1), alone)
    scores = []
    model.forward = lambda *inputs: scores.append(Classifier.forward(model, *inputs)) or scores[-1]
    predict(model, data, 23)
    predict(model, data, 1)
    torch.testing.assert_close(scores[0], torch.cat(scores[1:]), atol=1e-5, rtol=1e-4)


def tuned(checkpoint: Path, backbone: HubBackbone, seed: int, shuffled: bool = False):
    tokenizer = BertTokenizerFast.from_pretrained(checkpoint)
    train, dev = (encode(tokenizer, sentences(n, s), 24) for n, s in ((200, 2), (60, 3)))
    if shuffled:
        labels = np.random.default_rng(0).permutation(train.labels)
        train = Encoded(train.tokens, train.segments, labels)
    recipe = Recipe(3e-3, epochs=4, batch_size=16, seed=seed)
    return fine_tune(backbone.encoder, backbone.width, train, dev, recipe=recipe)


def test_what_can_be_learnt_is(checkpoint: Path, backbone: HubBackbone) -> None:
    before = {name: w.clone() for name, w in backbone.encoder.named_parameters()}
    torch.manual_seed(1)
    found = tuned(checkpoint, backbone, seed=0)
    torch.manual_seed(2)
    state = torch.random.get_rng_state()
    assert len(found) == 4 and found[-1]["accuracy"] > 95
    assert tuned(checkpoint, backbone, seed=0) == found, "a seed fixes everything"
    assert tuned(checkpoint, backbone, seed=1) != found
    assert max(epoch["accuracy"] for epoch in tuned(checkpoint, backbone, 0, True)) < 80, "a twin"
    assert torch.equal(torch.random.get_rng_state(), state)
    for name, weight in backbone.encoder.named_parameters():
        assert torch.equal(weight, before[name]), "the encoder is left as it is"


# The command line.


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    flags = ["--task", "sst2"]
    for split, count in (("train", 200), ("dev", 60)):
        lines = [f"{e.first}\t{e.label}\n" for e in sentences(count, 2 + (split == "dev"))]
        path = put(tmp_path / f"{split}.tsv", "sentence\tlabel\n" + "".join(lines))
        flags += [f"--{split}", str(path)]
    return flags


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("COLUMNS", "200")
    return ["glue"]


def test_a_run_and_a_checkpoint_go_through_the_same_table(
    checkpoint: Path, tmp_path: Path, command: list[str], files: list[str], capsys
) -> None:
    content = {
        **BASE,
        "output": str(tmp_path / "run"),
        "data": {"class_path": f"{HERE}.WordData"},
        "backbone": {
            "class_path": "seqdiff.backbones.HubBackbone",
            "init_args": {"checkpoint": str(checkpoint)},
        },
        "trainer": {**BASE["trainer"], "max_steps": 2},
    }
    (tmp_path / "bert.yaml").write_text(yaml.safe_dump(content))
    assert main(["train", str(tmp_path / "bert.yaml")]) == 0
    grid = ["--lr", "1e-9", "3e-3", "--seeds", "2", "--epochs", "4", "--max_length", "24"]
    grid += ["--batch_size", "16"]
    for model in (tmp_path / "run", checkpoint):
        capsys.readouterr()
        assert main([*command, str(model), *files, *grid]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert "on SST-2: 200 train, 60 dev" in text and "published MDLM 92.20" in text
        assert "This dev set has 60 examples and the published one has 872, so" in text
        assert "standard error over seeds" in text and "biased upwards" in text
        best = text.partition("0.003 *")[2].split()[:3]
        assert float(best[0]) > 90 and best[2] == "2", "the better rate is marked"


def test_a_folder_of_results_is_continued(
    checkpoint: Path, tmp_path: Path, command: list[str], files: list[str], monkeypatch
) -> None:
    out = tmp_path / "results"
    grid = ["--seeds", "2", "--epochs", "1", "--max-length", "24", "--out", str(out)]
    call = [*command, str(checkpoint), *files, *grid, "--lr"]
    assert main([*call, "1e-3"]) == 0
    lines = (out / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["key"]["seed"] for line in lines] == [0, 1]
    ran = []
    real = glue.fine_tune
    monkeypatch.setattr(glue, "fine_tune", lambda *a, **k: ran.append(k["recipe"]) or real(*a, **k))
    assert main([*call, "1e-3", "2e-3"]) == 0
    assert [recipe.lr for recipe in ran] == [2e-3, 2e-3], "finished runs are not run again"
    assert (out / "results.jsonl").read_text().splitlines()[:2] == lines
    rows = json.loads((out / "table.json").read_text())["rows"]
    assert [row["lr"] for row in rows] == [1e-3, 2e-3] and sum(row["chosen"] for row in rows) == 1
    assert (out / "table.md").read_text().count("| published MDLM |") == 1
    path = Path(files[files.index("--dev") + 1])
    path.write_text(path.read_text() + "a good film\t1\n")
    assert main([*call, "1e-3"]) == 0
    assert len(ran) == 4, "another dev set is another result"


def test_rates_that_diverge_are_named(
    checkpoint: Path, command: list[str], files: list[str], fails, capsys
) -> None:
    grid = ["--seeds", "1", "--epochs", "1", "--max-length", "24", "--lr"]
    said = fails([*command, str(checkpoint), *files, *grid, "1e30"])
    assert "glue.lr must keep a network finite, got 1 runs that all diverged; lower it" in said
    assert main([*command, str(checkpoint), *files, *grid, "1e30", "1e-3"]) == 0
    assert "1e+30 diverged" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--seeds", "0"], "glue.seeds must be at least 1, got 0"),
        (["--lr", "0"], "glue.lr must be above 0, got 0.0; 3e-5 is usual"),
        (["--dev", "no.tsv"], "glue.dev must be an existing file, got no.tsv"),
        (["--max_length", "999"], "glue.max_length must be between 4 and 24, the context of"),
        (["--task", "cola"], "glue.train must hold 4 columns and a label of CoLA on each line,"),
    ],
)
def test_bad_arguments(checkpoint: Path, command, files, fails, flags, said) -> None:
    assert said in fails(override([*command, str(checkpoint), *files], *flags))


def test_a_run_on_another_network_is_refused(trained: Path, command, files, fails) -> None:
    assert "must be a run on seqdiff.backbones.HubBackbone, got" in fails(
        [*command, str(trained), *files]
    )


def test_a_run_whose_checkpoint_is_gone_says_whose_it_was(
    tmp_path: Path, command: list[str], files: list[str], fails
) -> None:
    folder, run = save_bert(tmp_path / "bert"), tmp_path / "run"
    content = {
        **BASE,
        "output": str(run),
        "data": {"class_path": f"{HERE}.WordData"},
        "backbone": {
            "class_path": "seqdiff.backbones.HubBackbone",
            "init_args": {"checkpoint": str(folder)},
        },
        "trainer": {**BASE["trainer"], "max_steps": 0},
    }
    (tmp_path / "bert.yaml").write_text(yaml.safe_dump(content))
    assert main(["train", str(tmp_path / "bert.yaml")]) == 0
    folder.rename(tmp_path / "gone")
    said = fails([*command, str(run), *files, "--max_length", "24"])
    assert (
        f"glue.model: the checkpoint of {run}, for its tokenizer, must be the folder of a" in said
    )
    assert f"got '{folder}'" in said
