"""From FASTA to FASTA: the main task on a genome, from the command line."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import yaml
from Bio import SeqIO

from genomics.data.sources import MarkovGenome
from genomics.io.fasta import write_fasta
from seqdiff.cli.app import main

CONFIGS = Path(__file__).parents[2] / "configs"
SMALL = [
    "--data.length=64",
    "--data.stride=32",
    "--data.batch_size=16",
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


def train(fasta: Path, output: Path, *flags: str) -> None:
    config = str(CONFIGS / "experiment" / "genomics" / "fasta.yaml")
    assert (
        main(["train", config, f"--data.fasta={fasta}", f"--output={output}", *SMALL, *flags]) == 0
    )


@pytest.fixture
def markov_fasta(tmp_path: Path) -> Path:
    """Two records of a chain that repeats a base with probability 3/4: 1.2075 bits/base."""
    stay = np.full((4, 4), 0.25 / 3) + np.eye(4) * (0.75 - 0.25 / 3)
    letters = MarkovGenome(stay).sample(2, 6000, seed=0)
    strings = ["".join("ACGT"[i] for i in row) for row in letters]
    write_fasta(tmp_path / "genome.fa", ["one", "two"], [strings[0].lower(), strings[1]])
    return tmp_path / "genome.fa"


def test_fasta_to_fasta(markov_fasta: Path, tmp_path: Path) -> None:
    """The bound falls to the Markov entropy, and the samples repeat bases like the source."""
    run, numbers, samples = tmp_path / "run", tmp_path / "e.json", tmp_path / "s.fa"
    split = "--data.split=[0.6,0.2,0.2]"  # enough validation rows to choose gates on
    train(markov_fasta, run, "--trainer.max_steps=150", "--experts.order=10", split)
    assert main(["evaluate", str(run), "--json", str(numbers), "--evaluations", "8"]) == 0
    content = json.loads(numbers.read_text())
    rows = {row["name"]: row for row in content["rows"]}
    model = rows.pop("model, upper bound")
    parts = rows.pop("network alone"), rows.pop("experts alone")
    assert all(model["bits_per_token"] < part["bits_per_token"] + 0.01 for part in parts)
    assert list(rows)[:9] == [f"Markov order {k}" for k in range(9)]
    assert list(rows)[9].startswith("interpolated Markov, order ") and len(rows) == 10
    assert all(0 < row["bits_per_token_error"] < 0.1 for row in rows.values())
    best = min(rows, key=lambda name: rows[name]["bits_per_token"])
    assert content["difference"]["baseline"] == best
    gap = model["bits_per_token"] - rows[best]["bits_per_token"]
    assert content["difference"]["bits_per_token"] == pytest.approx(gap)
    assert 0 < content["difference"]["bits_per_token_error"]
    entropy = rows["Markov order 1"]["bits_per_token"]
    assert entropy == pytest.approx(1.2075, abs=0.1)
    assert entropy - 0.02 < model["bits_per_token"] < entropy + 0.1
    assert 0 < model["bits_per_token_error"] < 0.1

    draw = ["sample", str(run), "--num=40", "--length=50", f"--out={samples}", "--seed=3"]
    assert main(draw) == 0
    records = [(record.id, str(record.seq)) for record in SeqIO.parse(samples, "fasta")]
    assert len(records) == 40 and {len(sequence) for _, sequence in records} == {50}
    repeats = np.mean([a == b for _, s in records for a, b in pairwise(s)])
    # 1,960 neighbours, each equal with probability 3/4: 1e-6 is at 4.9 * 0.0098.
    assert repeats == pytest.approx(0.75, abs=0.05 + 0.03)
    first = samples.read_text()
    assert main(draw) == 0
    assert samples.read_text() == first


def test_resume_with_reverse_complement_is_bit_identical(
    markov_fasta: Path, tmp_path: Path
) -> None:
    stopped, straight = tmp_path / "stopped", tmp_path / "straight"
    flat = ("--optim.schedule=constant", "--optim.min_lr=0")
    train(markov_fasta, straight, "--trainer.max_steps=6", *flat)
    train(markov_fasta, stopped, "--trainer.max_steps=3", *flat)
    halfway = (stopped / "model.safetensors").read_bytes()
    assert main(["train", "--resume", str(stopped), "--trainer.max_steps", "6"]) == 0
    resumed = (stopped / "model.safetensors").read_bytes()
    assert resumed == (straight / "model.safetensors").read_bytes()
    assert resumed != halfway


def test_a_real_slice(real_data: Path, tmp_path: Path) -> None:
    """Human chr20: training on a thousand small batches must beat the base composition."""
    run, numbers = tmp_path / "run", tmp_path / "e.json"
    fasta = real_data / "hg38" / "hg38_chr20_1-1000000.fa.gz"
    train(fasta, run, "--trainer.max_steps=200")
    assert main(["evaluate", str(run), "--json", str(numbers), "--evaluations", "2"]) == 0
    rows = {row["name"]: row for row in json.loads(numbers.read_text())["rows"]}
    model = rows["model, upper bound"]
    composition = rows["Markov order 0"]["bits_per_token"]
    assert model["bits_per_token"] + 5 * model["bits_per_token_error"] < composition
    assert json.loads(numbers.read_text())["split"] == "test"


def test_demo_prints_truth_gap_and_baselines(tmp_path: Path, capsys) -> None:
    base = CONFIGS / "experiment" / "genomics" / "demo.yaml"
    small = {
        "base": str(base),
        "data": {"init_args": {"length": 32, "num_train": 64, "num_valid": 8, "num_test": 32}},
        "trainer": {"max_steps": 2, "enable_progress_bar": False},
    }
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(small))
    assert main(["demo", str(path), "--output", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr().out
    for line in ("model, upper bound", "source, entropy rate", "gap", "Markov order 8", "Next:"):
        assert line in printed
    assert len(list(SeqIO.parse(tmp_path / "run" / "samples.fa", "fasta"))) == 64
    assert "The first sequence of" in (tmp_path / "run" / "report.html").read_text()
    numbers = json.loads((tmp_path / "run" / "report.json").read_text())
    assert numbers["about"]["held_out"] and len(numbers["motifs"]["names"]) == 2
    hits = {name: sum(found) for name, found in numbers["motifs"]["hits_per_kilobase"].items()}
    assert hits["real"] > 5 * hits["dinucleotide shuffle"], "the planted motifs are looked for"


def test_demo_refuses_data_without_a_known_entropy(tmp_path: Path, capsys) -> None:
    config = str(CONFIGS / "experiment" / "genomics" / "fasta.yaml")
    assert main(["demo", config, "--output", str(tmp_path / "run")]) == 2
    assert "must have data.class_path genomics.data.SyntheticDataModule" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert main(["demo", str(tmp_path / "nope.yaml")]) == 2
    assert "error: CONFIG must be an existing file, got" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["fasta", "valid_fasta"])
def test_a_missing_file_names_its_key(
    key: str, markov_fasta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails
) -> None:
    monkeypatch.chdir(tmp_path)
    given = f"--data.{key}=absent.fa"
    config = str(CONFIGS / "experiment" / "genomics" / "fasta.yaml")
    said = fails(["train", config, given, "--data.length=64", "--output=run"])
    assert said == f"seqdiff: error: absent.fa: no such file; set data.{key}"
    assert not (tmp_path / "run").exists()


def test_a_run_does_not_depend_on_the_folder_it_was_typed_in(
    markov_fasta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train(Path("genome.fa"), Path("run"), "--trainer.max_steps=1")
    options = yaml.safe_load((tmp_path / "run" / "run.yaml").read_text())["data"]["init_args"]
    assert options["fasta"] == str(markov_fasta) and options["bed"] is None
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["evaluate", str(tmp_path / "run"), "--evaluations=2"]) == 0


def test_experts_need_a_validation_split(
    markov_fasta: Path, tmp_path: Path, fails: Callable[[list[str]], str]
) -> None:
    """The error comes before training."""
    config = str(CONFIGS / "experiment" / "genomics" / "fasta.yaml")
    run, flags = tmp_path / "run", ["--data.split=[1, 0, 0]", "--trainer.val_check_interval=null"]
    command = [
        "train",
        config,
        f"--data.fasta={markov_fasta}",
        f"--output={run}",
        *SMALL[:-1],
        *flags,
    ]
    said = fails([*command, "--trainer.max_steps=1"])
    assert "RunConfig.experts must be null without a validation split, which chooses" in said
    assert "add --experts null" in said
    assert not run.exists()
