"""Runs of Plaid from the command line: trained, resumed, evaluated, sampled, infilled."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from Bio import SeqIO

from genomics.io.fasta import write_fasta
from seqdiff.cli.app import main
from seqdiff.denoiser.gaussian import GaussianDenoiser
from seqdiff.run import load

CONFIGS = Path(__file__).parents[2] / "configs" / "experiment"
DEMO = CONFIGS / "genomics" / "demo.yaml"
SMALL = [
    "--preset=plaid",
    "--data.length=12",
    "--data.num_train=256",
    "--data.num_valid=16",
    "--data.num_test=8",
    "--data.batch_size=8",
    "--process.init_args.dim=4",
    "--optim.warmup_steps=0",
    "--trainer.enable_progress_bar=false",
    "--trainer.log_every_n_steps=1",
]
CADUCEUS = ["--backbone.d_model=8", "--backbone.n_layer=1"]
TRANSFORMER = [
    "--backbone=seqdiff.backbones.Transformer",
    "--backbone.d_model=8",
    "--backbone.n_layer=1",
    "--backbone.n_heads=2",
    "--backbone.cond_dim=8",
    "--backbone.dropout=0.5",
]
NETS = {
    "caduceus": CADUCEUS,
    "transformer": [*TRANSFORMER, "--process.init_args.self_conditioning=true"],
}


def train(output: Path, *flags: str) -> list[str]:
    return ["train", str(DEMO), f"--output={output}", *SMALL, *flags]


@pytest.fixture(scope="module", params=NETS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp(request.param) / "run"
    steps = ["--trainer.max_steps=4", "--trainer.val_check_interval=2"]
    assert main(train(output, *NETS[request.param], *steps)) == 0
    return output


def test_a_run_is_what_the_preset_says(run: Path):
    trained = load(run)
    denoiser = trained.denoiser
    assert isinstance(denoiser, GaussianDenoiser) and denoiser.time_conditioned
    assert denoiser.vectors.shape == (4, 4)
    kept = yaml.safe_load((run / "run.yaml").read_text())
    assert kept["process"]["class_path"].endswith("Gaussian")
    assert kept["objective"]["class_path"].endswith("GaussianVLB")
    with (run / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["name"] == "val/nats_per_token"]
    assert len(rows) == 2 and all(0.5 < float(row["value"]) < 3 for row in rows)


def test_schedule_embedding_and_network_are_all_trained_and_averaged(tmp_path: Path):
    output = tmp_path / "run"
    assert main(train(output, *CADUCEUS, "--trainer.max_steps=0")) == 0
    start = load(output).denoiser.state_dict()
    assert main(train(tmp_path / "on", *CADUCEUS, "--trainer.max_steps=3")) == 0
    end = load(tmp_path / "on").denoiser.state_dict()
    moved = {name for name in start if not torch.equal(start[name], end[name])}
    assert {"table.weight", "enter.weight", "backbone.embedding.weight"} <= moved
    assert {n for n in start if n.startswith("schedule.")} <= moved
    checkpoint = torch.load(tmp_path / "on" / "last.ckpt", weights_only=True)
    last = checkpoint["state_dict"]["denoiser.table.weight"]
    assert not torch.equal(last, end["table.weight"]), "the average is exported"
    rates = [group["initial_lr"] for group in checkpoint["optimizer_states"][0]["param_groups"]]
    assert max(rates) == pytest.approx(min(rates) * 1e-2 / 1.4e-3)


@pytest.mark.parametrize("net", NETS)
def test_resume_is_bit_identical(net: str, tmp_path: Path):
    """With dropout, self-conditioning, reconstruction and the moments of all groups."""
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    flags = [*NETS[net], "--checkpoint_every_n_steps=2"]
    assert main(train(straight, *flags, "--trainer.max_steps=5")) == 0
    assert main(train(stopped, *flags, "--trainer.max_steps=2", "--optim.schedule=constant",
                      "--optim.min_lr=0")) == 0  # fmt: skip
    assert main(train(tmp_path / "other", *flags, "--trainer.max_steps=5",
                      "--optim.schedule=constant", "--optim.min_lr=0")) == 0  # fmt: skip
    assert main(["train", "--resume", str(stopped), "--trainer.max_steps=5"]) == 0
    weights = {
        path.name: (path / "model.safetensors").read_bytes()
        for path in (straight, stopped, tmp_path / "other")
    }
    assert weights["stopped"] == weights["other"] != weights["straight"]


def test_evaluate(run: Path, tmp_path: Path):
    numbers = tmp_path / "e.json"
    flags = ["--evaluations=8", "--json", str(numbers)]
    assert main(["evaluate", str(run), *flags]) == 0
    content = json.loads(numbers.read_text())
    row = next(row for row in content["rows"] if row["name"].startswith("model"))
    assert 0 < row["bits_per_token_error"] < row["bits_per_token"]
    assert content["estimator"] == "gaussian-integral"
    doubled = 2 if load(run).denoiser.process.self_conditioning else 1
    assert row["evaluations"] == 10 * doubled


def test_sample_infill_and_motif(run: Path, tmp_path: Path):
    out = tmp_path / "x.fa"
    common = ["--num=3", "--seed=1", f"--out={out}", "--num-steps=5"]
    assert main(["sample", str(run), "--length=12", *common]) == 0
    first = [str(record.seq) for record in SeqIO.parse(out, "fasta")]
    assert all(re.fullmatch("[ACGT]{12}", row) for row in first) and len(first) == 3
    assert main(["sample", str(run), "--length=12", *common, "--batch_size=1"]) == 0
    assert [str(record.seq) for record in SeqIO.parse(out, "fasta")] == first
    write_fasta(tmp_path / "t.fa", ["a"], ["ACGTNNNNRYNA"])
    assert main(["sample", str(run), f"--infill={tmp_path / 't.fa'}", *common]) == 0
    for record in SeqIO.parse(out, "fasta"):
        assert re.fullmatch("ACGT[ACGT]{4}[AG][CT][ACGT]A", str(record.seq))
    assert main(["sample", str(run), "--length=12", "--motif=GGG@4", *common]) == 0
    assert all(str(r.seq)[4:7] == "GGG" for r in SeqIO.parse(out, "fasta"))


def test_score_and_variants(run: Path, tmp_path: Path):
    write_fasta(tmp_path / "g.fa", ["c"], ["ACGTTGCAACCGGTTTAACAGTNN"])
    out = tmp_path / "t.tsv"
    scored = ["score", str(run), "--fasta", str(tmp_path / "g.fa"), "--evaluations=4"]
    assert main([*scored, "--out", str(out)]) == 0
    (row,) = csv.DictReader(out.read_text().splitlines(), delimiter="\t")
    assert row["counted"] == "22" and float(row["standard_error"]) > 0
    (tmp_path / "v.vcf").write_text(
        "##fileformat=VCFv4.2\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"
        "c\t8\t.\tA\tC\t.\t.\t.\n"
    )
    files = ["--vcf", str(tmp_path / "v.vcf"), "--fasta", str(tmp_path / "g.fa")]
    command = ["variants", str(run), *files, "--out", str(out), "--seed=0", "--evaluations=4"]
    assert main(command) == 0
    (row,) = csv.DictReader(out.read_text().splitlines(), delimiter="\t")
    assert row["status"] == "scored" and float(row["standard_error"]) > 0


def test_what_does_not_fit_ends_in_one_line(
    run: Path, tmp_path: Path, fails: Callable[[list[str]], str]
):
    sample = ["sample", str(run), "--num=1", "--length=4", "--seed=0", f"--out={tmp_path / 'x.fa'}"]
    assert "choose from gaussian" in fails([*sample, "--sampler=ancestral"])
    assert "Conjoined.denoiser must be given symbols" in fails([*sample, "--rc_consistent"])
    assert "must be gaussian-integral" in fails(["evaluate", str(run), "--estimator=exact-k"])
    write_fasta(tmp_path / "g.fa", ["c"], ["ACGT"])
    embed = ["embed", str(run), f"--fasta={tmp_path / 'g.fa'}", f"--out={tmp_path / 'e.npz'}"]
    assert "embed.run must have a network that reads tokens" in fails(embed)
    ism = ["ism", *embed[1:3], f"--out={tmp_path / 'i.npz'}"]
    assert "ism.directory must be a run of a process whose only noise is masks, got" in fails(ism)
    columns = "#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO"
    row = "c\t2\t.\tC\tA\t.\t.\t."
    (tmp_path / "v.vcf").write_text(f"##fileformat=VCFv4.2\n{columns}\n{row}\n")
    variants = [
        "variants",
        *embed[1:3],
        f"--vcf={tmp_path / 'v.vcf'}",
        f"--out={tmp_path / 'v.tsv'}",
    ]
    message = fails([*variants, "--score=marginal"])
    assert "variants.score must be likelihood for the process gaussian" in message
    assert {file.name for file in tmp_path.iterdir()} == {"g.fa", "v.vcf"}
    wrong = train(tmp_path / "w", *CADUCEUS)
    assert "must read one strand" in fails([*wrong, "--backbone.variant=ps", PS])
    assert "choose GaussianVLB" in fails([*wrong, "--objective=ContinuousNELBO"])
    assert "Denoiser.parameterization subs must go with" in fails(
        [*wrong, "--parameterization=Subs"]
    )
    blocks = fails([*wrong, "--block_size=4"])
    assert "RunConfig.block_size must be null with the process gaussian" in blocks


PS = "--backbone.complement=[3,2,1,0,4]"
