"""Every system of the papers on DNA and on text, with the commands of a user."""

import json
import re
from pathlib import Path

import pytest
import torch
from Bio import SeqIO

from genomics.io.fasta import write_fasta
from seqdiff.cli.app import main
from seqdiff.run.presets import PRESETS

CONFIGS = Path(__file__).parents[2] / "configs" / "experiment"
SYSTEMS = [name for name in PRESETS if name != "ar"]
CADUCEUS = ("--backbone=seqdiff.backbones.Caduceus", "--backbone.d_model=8", "--backbone.n_layer=1")
TRANSFORMER = (
    "--backbone=seqdiff.backbones.Transformer",
    *("--backbone.d_model=8", "--backbone.n_layer=1"),
    *("--backbone.n_heads=2", "--backbone.cond_dim=8"),
)
BLOCKS = ("--backbone=seqdiff.backbones.BlockMamba", *CADUCEUS[1:])
NETWORKS = [
    *((system, TRANSFORMER) for system in SYSTEMS),
    *((system, BLOCKS if system == "bd3lm" else CADUCEUS) for system in SYSTEMS),
    ("ar", ("--backbone=seqdiff.backbones.AutoregressiveMamba", *CADUCEUS[1:])),
    ("ar", ("--backbone=seqdiff.backbones.AutoregressiveTransformer", *TRANSFORMER[1:4])),
]
each_system = pytest.mark.parametrize(
    ("system", "network"),
    [
        pytest.param(
            *(name, flags),
            id=f"{name}-{flags[0].rpartition('.')[2]}",
            marks=[] if name in ("mdlm", "bd3lm", "ar") else [pytest.mark.slow],
        )
        for name, flags in NETWORKS
    ],
)
BRIEF = (
    *("--data.length=16", "--data.batch_size=4", "--ema_decay=0.9", "--optim.warmup_steps=0"),
    *("--trainer.max_steps=2", "--trainer.val_check_interval=1", "--trainer.limit_val_batches=1"),
    *("--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"),
)


@pytest.fixture(autouse=True)
def _one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setenv("SEQDIFF_CACHE", str(tmp_path / "cache"))


def check_likelihood(run: Path, system: str) -> None:
    """Validated during training, and evaluated with a standard error."""
    metrics = (run / "metrics.csv").read_text()
    assert "val/nats_per_token" in metrics and "nan" not in metrics and "inf" not in metrics
    numbers = run / "test.json"
    budget = [] if system == "ar" else ["--evaluations=2"]
    assert main(["evaluate", str(run), *budget, "--device=cpu", "--json", str(numbers)]) == 0
    content = json.loads(numbers.read_text())
    row = content["rows"][0]
    assert row["name"].startswith("model") and 0 < row["bits_per_token_error"] < 10
    steps = system.startswith("d3pm")  # trained and evaluated with discrete steps
    assert (content["estimator"] == "discrete-steps") == steps
    assert (row["name"] == "model, upper bound, 1000 steps") == steps


def sampling(run: Path, out: Path, system: str, *flags: str) -> list[str]:
    steps = [] if system in ("ar", "bd3lm") else ["--num-steps=3"]
    command = ["sample", str(run), "--num=2", "--seed=1", "--device=cpu", "--out", str(out)]
    return [*command, *steps, *flags]


@each_system
def test_dna(system: str, network: tuple[str, ...], tmp_path: Path) -> None:
    run, out, template = tmp_path / "run", tmp_path / "x.fa", tmp_path / "t.fa"
    config = str(CONFIGS / "genomics" / "demo.yaml")
    data = ["--data.num_train=8", "--data.num_valid=4", "--data.num_test=4"]
    flags = ["--preset", system, *network, *BRIEF, *data, "--output", str(run)]
    assert main(["train", config, *flags]) == 0
    check_likelihood(run, system)
    assert main(sampling(run, out, system, "--length=16")) == 0
    drawn = [str(record.seq) for record in SeqIO.parse(out, "fasta")]
    assert len(drawn) == 2 and all(re.fullmatch("[ACGT]{16}", row) for row in drawn)
    pattern = "ACGTNNNNNNNNRYNN" if system == "ar" else "ACGTNNNNNNNNRYNA"
    write_fasta(template, ["a"], [pattern])
    assert main(sampling(run, out, system, "--infill", str(template))) == 0
    wanted = "ACGT[ACGT]{8}[AG][CT][ACGT]" + pattern[-1].replace("N", ".")
    assert all(re.fullmatch(wanted, str(record.seq)) for record in SeqIO.parse(out, "fasta"))


@each_system
def test_text(system: str, network: tuple[str, ...], tmp_path: Path) -> None:
    run, out, template = tmp_path / "run", tmp_path / "x.jsonl", tmp_path / "t.jsonl"
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"this is the line with number {i}\n" for i in range(80)))
    config = str(CONFIGS / "text" / "bytes.yaml")
    data = [f"--data.train={corpus}", "--data.eval_batch_size=4"]
    flags = ["--preset", system, *network, *BRIEF, *data, "--output", str(run)]
    assert main(["train", config, *flags]) == 0
    check_likelihood(run, system)
    assert main(sampling(run, out, system, "--length=16")) == 0
    assert len(out.read_text().splitlines()) == 2
    text = "this[MASK:4]" if system == "ar" else "this[MASK:4]the [MASK]ine"
    template.write_text(json.dumps({"name": "a", "text": text}) + "\n")
    assert main(sampling(run, out, system, "--infill", str(template))) == 0
    filled = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["name"] for row in filled] == ["a_0", "a_1"]
    for row in filled:
        assert re.fullmatch("(?s)this.{1,4}" + ("" if system == "ar" else "the .ine"), row["text"])
