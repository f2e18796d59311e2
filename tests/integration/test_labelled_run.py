"""From a table of labels to samples of a class, from the command line."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from Bio import SeqIO

from genomics.io.fasta import write_fasta
from seqdiff.cli.app import main
from seqdiff.likelihood import evaluate
from seqdiff.run import load

CONFIG = Path(__file__).parents[2] / "configs" / "experiment" / "genomics" / "fasta.yaml"
SMALL = [
    "--data.length=32",
    "--data.stride=32",
    "--data.batch_size=16",
    "--backbone.d_model=12",
    "--backbone.n_layer=1",
    "--optim.lr=2e-2",
    "--ema_decay=0.9",
    "--trainer.enable_progress_bar=false",
    "--trainer.val_check_interval=null",
    "--experts=null",
]
GC = {"poor": 0.2, "rich": 0.8}


def write_data(folder: Path) -> list[str]:
    """Records of independent bases, in two classes with different fractions of G and C."""
    generator, names, sequences, lines = np.random.default_rng(0), [], [], []
    for label, share in GC.items():
        for number in range(4):
            names.append(f"{label}{number}")
            chances = [(1 - share) / 2, share / 2, share / 2, (1 - share) / 2]
            sequences.append("".join(generator.choice(list("ACGT"), size=2000, p=chances)))
            lines.append(f"{names[-1]}\t{label}\n")
    write_fasta(folder / "x.fa", names, sequences)
    (folder / "labels.tsv").write_text("".join(lines))
    return [f"--data.fasta={folder / 'x.fa'}", f"--data.label_file={folder / 'labels.tsv'}"]


def train(output: Path, *flags: str) -> int:
    return main(["train", str(CONFIG), f"--output={output}", *SMALL, *flags])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [*write_data(tmp_path_factory.mktemp("data")), "--data.labels=[rich, poor]"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQDIFF_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def labelled(data: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("labelled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEQDIFF_CACHE", str(folder / "cache"))
        # The rate of fasta.yaml is for thousands of steps.
        steps = ("--trainer.max_steps=150", "--optim.muon_lr=0.02")
        assert train(folder / "run", *steps, *data) == 0
    return folder / "run"


def sample(run: Path, out: Path, *flags: str, length: int = 4) -> float:
    """The fraction of G and C in 2,000 bases.

    In sequences of the training length, a network without the label knows the class from the other
    bases, and then guidance changes nothing. In shorter ones a network is less exact.
    """
    num = f"--num={2000 // length}"
    command = ["sample", str(run), num, f"--length={length}", "--seed=1", f"--out={out}", *flags]
    command.append("--extrapolate")
    assert main(command) == 0
    letters = "".join(str(record.seq) for record in SeqIO.parse(out, "fasta"))
    assert len(letters) == 2000
    return sum(letter in "GC" for letter in letters) / len(letters)


@pytest.mark.slow
def test_samples_have_the_class_that_is_asked_for(labelled: Path, tmp_path: Path) -> None:
    """2,000 independent bases give the fraction to 0.009; 1e-6 is at 4.9 of those, 0.044.

    The model may be off by another 0.02. A model that ignores labels gives 0.5.
    """
    out = tmp_path / "s.fa"
    for name, share in GC.items():
        assert abs(sample(labelled, out, "--label", name, length=25) - share) < 0.044 + 0.02
    rich, poor = (sample(labelled, out, "--label", name) for name in ("rich", "poor"))
    stronger = sample(labelled, out, "--label", "rich", "--guidance", "3")
    weaker = sample(labelled, out, "--label=rich", "--guidance=0.5", "--sampler=ancestral")
    assert stronger > rich + 0.05 and weaker < rich - 0.02
    free = sample(labelled, out)
    assert poor + 0.1 < free < rich - 0.1
    assert free == sample(labelled, out, "--label", "poor", "--guidance", "0")


@pytest.mark.parametrize("preset", ["sedd", "plaid"])
def test_scores_and_embeddings_are_of_a_label_without_guidance(
    preset: str, data: list[str], tmp_path: Path, fails: Callable[[list[str]], str]
) -> None:
    """A strength of 1 is the model given the label, which every network with classes has."""
    assert train(tmp_path / "run", f"--preset={preset}", "--trainer.max_steps=2", *data) == 0
    run = load(tmp_path / "run")
    weights = run.denoiser.backbone.label_embedding.parameters()
    for weight in weights:
        torch.nn.init.normal_(weight)
    batch = next(iter(run.datamodule.evaluation_loader("test")))
    plain, ones = replace(batch, label=None), torch.ones_like(batch.label)
    wanted = evaluate(run.denoiser, [replace(batch, label=ones)], evaluations=2).nats
    found, other = (
        evaluate(run.denoiser.given_label(label), [plain], evaluations=2).nats for label in (1, 0)
    )
    assert np.array_equal(found, wanted) and not np.allclose(found, other)
    with pytest.raises(ValueError, match="label must be a class of the network, which has 2"):
        run.denoiser.given_label(2)
    out = tmp_path / "s.fa"
    command = ["sample", str(run.directory), "--num=2", "--length=8", "--seed=1", f"--out={out}"]
    drawn = {}
    for strength in ("1", "0"):
        flags = ["--label=poor", f"--guidance={strength}", "--num-steps=2"]
        assert main([*command, *flags]) == 0
        drawn[strength] = out.read_bytes()
    assert main([*command, "--num-steps=2"]) == 0
    assert drawn["0"] == out.read_bytes()
    message = fails([*command, "--label=poor", "--guidance=2"])
    assert "sample.guidance must be 0 or 1 for the process" in message
    scored = ["score", str(run.directory), f"--fasta={out}", f"--out={tmp_path / 's.tsv'}"]
    assert main([*scored, "--label=rich", "--evaluations=2"]) == 0


def test_the_run_keeps_the_names(labelled: Path) -> None:
    kept = yaml.safe_load((labelled / "run.yaml").read_text())
    assert kept["data"]["init_args"]["labels"] == ["rich", "poor"]
    assert "num_classes" not in kept["backbone"]["init_args"]
    assert kept["label_dropout"] == 0.1
    run = load(labelled)
    assert run.datamodule.labels == ["rich", "poor"] and run.denoiser.num_classes == 2


def test_resume_is_bit_identical(data: list[str], tmp_path: Path) -> None:
    stopped, straight = tmp_path / "stopped", tmp_path / "straight"
    flat = ("--optim.schedule=constant", "--optim.min_lr=0", "--label_dropout=0.5")
    assert train(straight, "--trainer.max_steps=6", *flat, *data) == 0
    assert train(stopped, "--trainer.max_steps=3", *flat, *data) == 0
    assert main(["train", "--resume", str(stopped), "--trainer.max_steps", "6"]) == 0
    resumed = (stopped / "model.safetensors").read_bytes()
    assert resumed == (straight / "model.safetensors").read_bytes()
    other = tmp_path / "other"
    assert train(other, "--trainer.max_steps=6", *flat, *data, "--label_dropout=0") == 0
    assert resumed != (other / "model.safetensors").read_bytes(), "dropout acts"


def refused(fails, run: Path, out: Path, *flags: str) -> str:
    command = ["sample", str(run), "--num=1", "--length=5", "--seed=1", f"--out={out}", *flags]
    line = fails(command)
    assert not out.exists()
    return line


@pytest.mark.parametrize(
    ("preset", "flags", "said"),
    [
        (
            "sedd",
            ["--label=rich", "--guidance=2"],
            "sample.guidance must be 0 or 1 for the process absorbing with parameterization score",
        ),
        (
            "plaid",
            ["--label=rich", "--guidance=2"],
            "sample.guidance must be 0 or 1 for the process gaussian with parameterization categ",
        ),
        (
            "udlm",
            ["--label=rich", "--guidance=2", "--sampler=tau_leaping"],
            "sampler must work with the guided process uniform with parameterization "
            "leave-one-out, got tau_leaping; choose from ancestral, predictor_corrector, twee",
        ),
        (
            "gidd",
            ["--label=rich", "--guidance=2", "--sampler=gibbs"],
            "sampler must work with the guided process hybrid with",
        ),
    ],
)
def test_guidance_of_another_process_is_an_error(
    preset: str, flags: list[str], said: str, data: list[str], tmp_path: Path, fails
) -> None:
    run, out = tmp_path / "run", tmp_path / "s.fa"
    assert train(run, "--preset", preset, "--trainer.max_steps=0", *data) == 0
    assert said in refused(fails, run, out, *flags)
    if preset in ("udlm", "gidd"):  # by a sampler for this process
        command = ["sample", str(run), "--num=1", "--length=5", "--seed=1", f"--out={out}"]
        assert main([*command, *flags[:2], "--num-steps=2"]) == 0


def test_bad_labels_are_refused(labelled: Path, fails, tmp_path: Path) -> None:
    out = tmp_path / "s.fa"
    line = refused(fails, labelled, out, "--label", "medium")
    assert "sample.label must be one of rich, poor, got 'medium'; choose a label" in line
    line = refused(fails, labelled, out, "--guidance", "2")
    assert "sample.guidance must come with a label or a signal, got 2.0 without; add" in line
    for gamma in ("-1", "nan", "inf"):
        line = refused(fails, labelled, out, "--label", "rich", f"--guidance={gamma}")
        said = f"sample.guidance must be finite and at least 0, got {float(gamma)}; 1 samples"
        assert said in line


@pytest.mark.usefixtures("toy_writer")
def test_a_run_without_labels_has_none_to_ask_for(trained: Path, fails, tmp_path: Path) -> None:
    line = refused(fails, trained, tmp_path / "a.ring", "--label", "rich")
    assert "sample.label must be left out for a run without labels, got 'rich'; train on" in line
    line = fails(["evaluate", str(trained), "--given_labels"])
    assert "evaluate.given_labels must be left out for a run without labels" in line


def test_a_run_that_never_hid_a_label_has_no_distribution_without_one(
    data: list[str], fails, tmp_path: Path
) -> None:
    run, out = tmp_path / "run", tmp_path / "s.fa"
    assert train(run, "--trainer.max_steps=1", "--label_dropout=0", *data) == 0
    for flags in ((), ("--label=rich", "--guidance=2")):
        line = refused(fails, run, out, *flags)
        assert "trained with label_dropout 0" in line and "give --label rich, or train with" in line
    assert 0 <= sample(run, out, "--label", "rich") <= 1
    line = fails(["evaluate", str(run)])
    assert "evaluate.given_labels must be set for a run trained with label_dropout 0, which" in line
    assert main(["evaluate", str(run), "--given_labels", "--evaluations=2"]) == 0


def test_configurations_that_do_not_fit(data: list[str], fails, tmp_path: Path) -> None:
    command = ["train", str(CONFIG), f"--output={tmp_path / 'run'}", *SMALL]
    line = fails([*command, *data[:2]])
    assert "FastaDataModule.labels must be given with label_file, got none" in line
    line = fails([*command, *data, "--backbone.num_classes=2"])
    assert "num_classes must not be set, got 2; drop it, it follows from data.labels" in line
    line = fails([*command, *data, "--label_dropout=1"])
    assert "RunConfig.label_dropout must be in [0, 1), got 1.0; 0.1 is usual" in line
    toy = ["--backbone=tests.integration.toy_domain.ToyNet"]
    plain = [flag for flag in command if not flag.startswith("--backbone")]
    line = fails([*plain, *toy, *data])
    assert "RunConfig.backbone must take num_classes for data with labels, got ToyNet" in line
    assert not (tmp_path / "run").exists()


def test_scores_are_given_the_label(
    labelled: Path, fails, tmp_path: Path, monkeypatch, capsys
) -> None:
    write_fasta(tmp_path / "x.fa", ["gc", "at"], ["GCCGGCGCCG" * 3, "ATTATAATTA" * 3])
    out = tmp_path / "s.tsv"
    score = ["score", str(labelled), f"--fasta={tmp_path / 'x.fa'}", f"--out={out}"]
    nats = {}
    for name, flags in {"": [], "rich": ["--label=rich"], "poor": ["--label=poor"]}.items():
        assert main([*score, "--estimator=fixed-order", *flags]) == 0
        said = capsys.readouterr().out
        assert (f"left to right, given the label {name}, by" in said) == bool(name)
        assert ("label" in said) == bool(name)
        rows = csv.DictReader(out.read_text().splitlines(), delimiter="\t")
        nats[name] = [float(row["nats"]) for row in rows]
    assert nats["rich"][0] < nats[""][0] < nats["poor"][0]
    assert nats["poor"][1] < nats[""][1] < nats["rich"][1]
    line = fails([*score, "--label=medium"])
    assert "score.label must be one of rich, poor, got 'medium'" in line


def test_an_evaluation_says_whether_the_labels_are_given(
    labelled: Path, tmp_path: Path, capsys
) -> None:
    """By default they are not, as for the baselines; the output says which was done."""
    run = load(labelled)
    batches = list(run.datamodule.evaluation_loader("test"))
    hidden = [replace(batch, label=None) for batch in batches]
    told = "known bases; unknown bases, context and each row's label are given"
    untold = "known bases; unknown bases and context are given, labels are not"
    bits = {}
    for flags, given, counted in (([], hidden, untold), (["--given_labels"], batches, told)):
        out = tmp_path / "e.json"
        assert main(["evaluate", str(labelled), f"--json={out}", *flags]) == 0
        content, printed = json.loads(out.read_text()), " ".join(capsys.readouterr().out.split())
        assert content["counted"] == counted and f"counted: {counted}" in printed
        model, *baselines = content["rows"]
        assert model["name"].endswith("given each row's label") == bool(flags)
        assert baselines and not any("label" in row["name"] for row in baselines)
        right = evaluate(run.denoiser, given)
        assert model["bits_per_token"] == pytest.approx(right.bits_per_token, abs=1e-6)
        own = right.bits_per_token_estimator_error
        assert model["bits_per_token_estimator_error"] == pytest.approx(own, abs=1e-6)
        assert f"the model's SE includes the error of the estimator, {own:.4f}" in printed
        assert 0 < own < model["bits_per_token_error"]
        bits[bool(flags)] = model["bits_per_token"]
    assert bits[True] < bits[False] - 0.01, "labels tell of the bases"
