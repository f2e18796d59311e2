"""A run on a table of DNA: what it keeps of the table, and sequences of wanted values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from Bio import SeqIO

import seqdiff
from seqdiff.cli.app import main


def read(path: Path) -> dict[str, str]:
    return {record.id: str(record.seq) for record in SeqIO.parse(path, "fasta")}


def rich(sequences: list[str]) -> float:
    """The fraction of G and C."""
    return sum(s.count("G") + s.count("C") for s in sequences) / sum(map(len, sequences))


def test_a_run_keeps_what_sampling_needs_of_its_table(gc_run: Path, gc_table: Path) -> None:
    hidden = gc_table.rename(gc_table.with_suffix(".away"))
    try:
        run = seqdiff.load(gc_run)
        found = run.sample(3, signal={"gc": 2.0}, seed=0)
    finally:
        hidden.rename(gc_table)
    assert run.usual_length("x") == 24 and [len(s) for s in found] == [24] * 3
    assert run.datamodule.signals == ["gc", "noise"]
    embedding = run.denoiser.backbone.signal_embedding
    dataset = run.datamodule.dataset("train")
    values = dataset.signals(np.arange(len(dataset))).astype(float)
    for ours, statistic in zip(
        (embedding.mean, embedding.std, *embedding.range),
        (np.nanmean, np.nanstd, np.nanmin, np.nanmax),
        strict=True,
    ):
        assert np.allclose(ours.numpy(), statistic(values, axis=0), rtol=1e-5)


def test_values_steer_sequences(gc_run: Path) -> None:
    """Fractions of 40 x 24 bases have a standard error of .016; the wanted ones are .12 and .88."""
    run = seqdiff.load(gc_run)
    low, high = (rich(run.sample(40, signal={"gc": v}, seed=0)) for v in (-2.0, 2.0))
    plain = run.sample(40, seed=0)
    assert low < rich(plain) - 0.1 and rich(plain) + 0.1 < high
    text = ["GCGCGGCCGCGCCGGCGCGCCGCG"]
    nats = [run.score(text, signal={"gc": v})[0].nats for v in (-2.0, 2.0)]
    assert nats[1] < nats[0] - 5, "nats are negative log-likelihoods"


def test_paired_and_infilled_sequences_are_written_as_fasta(gc_run: Path, tmp_path: Path) -> None:
    run, out = seqdiff.load(gc_run), tmp_path / "s.fa"
    command = ["sample", str(gc_run), "--seed=3", f"--out={out}"]
    assert main([*command, "--signal-from=test"]) == 0
    dataset = run.datamodule.dataset("test")
    paired = run.sample(len(dataset), signal=dataset.signals(np.arange(len(dataset))), seed=3)
    assert read(out) == {f"test_{i}": text for i, text in enumerate(paired)}
    templates = tmp_path / "templates.fa"
    templates.write_text(">a\nACGTNNNNNNNN\n")
    assert main([*command, f"--infill={templates}", "--num=2", "--signal", "gc=2"]) == 0
    filled = run.infill("ACGTNNNNNNNN", 2, signal={"gc": 2.0}, seed=3)
    assert list(read(out).values()) == filled and filled[0].startswith("ACGT")
