"""A run from training to samples, scores, a report and variants, by the commands of a user."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import COLUMNS, PAIRS, draw_family, write_config
from seqdiff_proteins import SiteNetwork, report
from seqdiff_proteins.fasta import read_fasta

import seqdiff
from seqdiff.cli.app import main
from seqdiff.run import Run
from seqdiff.types import Inputs


def fails(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_the_model_learns_what_a_profile_cannot(trained: Run, capsys) -> None:
    """The entropy of the family is known: 6 pairs, of which the second column repeats the first."""
    p = np.array([0.4, 0.3, 0.2, 0.1])
    pair = np.diag(0.9 * p) + 0.1 * np.outer(p, p)
    entropy = -(pair * np.log(pair)).sum() / 2
    single = -(p * np.log(p)).sum()
    found = trained.evaluate(evaluations=8)
    rows = {row["name"]: row for row in found.content()["rows"]}
    bound, error = rows["model, upper bound"]["bits_per_token"] * np.log(2), 0.06
    assert entropy - error < bound < entropy + 0.15 * (single - entropy) + error
    assert abs(rows["site profile"]["bits_per_token"] * np.log(2) - single) < error
    assert "rows of 12 columns" in repr(found)


def test_samples_and_templates_are_fasta(trained: Run, tmp_path: Path, capsys) -> None:
    run, out = str(trained.directory), tmp_path / "samples.fasta"
    assert main(["sample", run, "--num", "300", "--seed", "0", "--out", str(out)]) == 0
    rows = np.array([list(row) for _, row in read_fasta(out)])
    assert rows.shape == (300, COLUMNS) and set(rows.ravel()) <= set("ACD-EFGHIKLMNPQRSTVWYUO")
    repeated = (rows[:, :PAIRS] == rows[:, PAIRS:]).mean()
    assert repeated > 0.8, "0.93 in the family, 0.3 for independent columns"
    template = tmp_path / "template.fa"
    template.write_text(">motif\nACBXXXXXXXXX\n")
    words = ["--infill", str(template), "--num", "40", "--seed", "0", "--out", str(out)]
    assert main(["sample", run, *words]) == 0
    filled = [row for _, row in read_fasta(out)]
    assert {row[:2] for row in filled} == {"AC"} and {row[2] for row in filled} <= {"D", "N"}
    assert np.mean([row[6] == "A" for row in filled]) > 0.7
    assert main(["sample", run, "--num", "2", "--seed", "0"]) == 0
    assert capsys.readouterr().out.splitlines()[-4].startswith(">sample_0")


def test_scores_of_a_file(trained: Run, tmp_path: Path, capsys) -> None:
    path = tmp_path / "some.faa"
    path.write_text(">pairs\nACDACDACDACD\n>none\nAAAAAACCCCCC\n>part\nACDXXXACDXXX\n")
    assert main(["score", str(trained.directory), str(path), "--seed", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    nats = {line.split()[0]: float(line.split()[2]) for line in lines[1:4]}
    assert nats["none"] > nats["pairs"] + 6 > nats["part"]
    assert lines[3].split()[-2] == "6", "X is not counted"
    scores = trained.score(path, seed=0)
    assert [round(score.nats or 0, 3) for score in scores] == list(nats.values())


def test_the_report(trained: Run, tmp_path: Path, capsys) -> None:
    run, out = str(trained.directory), tmp_path / "page.html"
    assert main(["report", run, "--num", "400", "--out", str(out)]) == 0
    text = out.read_text()
    assert text.count("<img") == 3 and "<script" not in text and "http" not in text
    content = json.loads(out.with_suffix(".json").read_text())
    found = {line["name"]: line["values"] for line in content["measures"]}
    pairs = found["covariances of pairs of sites"]
    assert pairs["training"] > 0.9 and pairs["samples"] > 0.85 and abs(pairs["shuffled"]) < 0.2
    assert found["frequencies at each site"]["shuffled"] > 0.95
    errors = {line["name"]: line["standard_errors"] for line in content["measures"]}
    assert 0 < errors["covariances of pairs of sites"]["samples"] < 0.05
    assert content["warnings"] == [] and "too few" not in text + capsys.readouterr().err
    assert content["about"]["samples"].endswith("samples.fasta: 400 of 12 residues")
    assert len(read_fasta(trained.directory / "samples.fasta")) == 400
    few = tmp_path / "few.fasta"
    few.write_text(">a\nACDACDACDACD\n")
    assert "at least 20 sequences, got 1" in fails(["report", run, "--samples", str(few)], capsys)
    few.write_text("".join(f">{i}\nACD\n" for i in range(20)))
    message = fails(
        ["report", run, "--samples", str(few), "--out", str(tmp_path / "a.html")], capsys
    )
    assert "0 must have the 12 residues of a training row, got 3" in message
    assert not (tmp_path / "a.html").exists()


@pytest.mark.parametrize(
    ("aligned", "training", "few"),
    [(True, 0.3, True), (True, 0.6, False), (False, 0.03, True), (False, 0.01, False)],
)
def test_the_report_says_when_samples_are_too_few(
    aligned: bool, training: float, few: bool
) -> None:
    """Real sequences are nearer to shuffled ones, which have 0 or .05, than to the best, 1 or 0."""
    name = "divergence of the frequencies of pairs of neighbours"
    lines = [report.Measure(name, "bits", {"training": 0.02, "shuffled": 0.05}, {})]
    if aligned:
        pairs = {"training": training, "shuffled": 0.0}
        lines.append(report.Measure("covariances of pairs of sites", "Pearson", pairs, {}))
    else:
        lines[0].values["training"] = training
    found = report.warnings(lines)
    assert len(found) == few
    assert all(f"as many training sequences have only {training:.3f}" in line for line in found)


def test_variants_are_masked_marginals(trained: Run, tmp_path: Path, capsys) -> None:
    """The protein is a training row; its scores are the model's, which knows the other column."""
    rows = [trained.tokenizer.decode(ids) for ids in trained.dataset("train").tokens]
    wild = next(row for row in rows if "-" not in row and row[:PAIRS] == row[PAIRS:])
    fasta, out = tmp_path / "a.fasta", tmp_path / "effects.tsv"
    fasta.write_text(f">wild\n{wild}\n")
    run = str(trained.directory)
    assert main(["variants", run, "--fasta", str(fasta), "--out", str(out)]) == 0
    table = pd.read_csv(out, sep="\t").set_index("mutant")
    assert len(table) == 12 * 19 and not table.isna().any(axis=None)
    tokenizer = trained.tokenizer
    for place, new in ((0, "W"), (11, "E"), (4, "D" if wild[4] != "D" else "A")):
        ids = torch.from_numpy(tokenizer.encode(wild))[None].clone()
        ids[0, place] = tokenizer.vocab_size
        with torch.no_grad():
            log_probs = trained.denoiser.log_probs(Inputs(ids))[0, place]
        before, after = tokenizer.encode(wild[place] + new)
        wanted = float(log_probs[after] - log_probs[before])
        found = table.loc[f"{wild[place]}{place + 1}{new}"]
        assert found.masked_marginal == pytest.approx(wanted, abs=1e-4)
    counts = Counter(row[4] for row in rows)  # of the last mutant's site
    ratio = np.log((counts[new] + 0.5) / (counts[wild[4]] + 0.5))
    assert found.site_profile == pytest.approx(ratio, abs=1e-5)
    assert found.masked_marginal < found.site_profile - 1, "the other column disagrees"
    assert table.blosum62[f"{wild[11]}12E"] == {"A": -1, "C": -4, "D": 2}[wild[11]]
    mutants = tmp_path / "dms.tsv"
    rows = [f"{m}\t{value}" for m, value in table.masked_marginal.items()]
    mutants.write_text("\n".join(["mutant\tfitness", *rows]))
    capsys.readouterr()
    words = ["variants", run, "--fasta", str(fasta), "--out", str(out), "--mutants", str(mutants)]
    assert main([*words, "--fitness", "fitness"]) == 0
    said = capsys.readouterr().out
    assert "masked_marginal  Spearman +1.000 +- 0.000" in said and "228 mutants of 12" in said
    for content, message in (
        ("mutant\nA1\n", "a mutant must be written like A42G, got 'A1'"),
        ("mutant\nW1A\n", f"W1A must name residue 1 of the protein, which is {wild[0]}"),
        ("mutant\nA99C\n", "A99C must name residue 99 of the protein, which is no residue"),
        ("other\nA1C\n", "must have a column name, got other"),
    ):
        mutants.write_text(content)
        assert message in fails(words, capsys)


def test_proteins_of_any_length_train_and_sample(tmp_path: Path, capsys) -> None:
    """Padded rows in a transformer of seqdiff; the report compares neighbours, not sites."""
    rows = [row.replace("-", "") for row in draw_family(300, seed=1)]
    path = tmp_path / "proteins.fa"
    path.write_text("".join(f">{i}\n{row}\n" for i, row in enumerate(rows)))
    backbone = {
        "class_path": "seqdiff.backbones.Transformer",
        "init_args": {"d_model": 16, "n_layer": 1, "n_heads": 2, "cond_dim": 8},
    }
    trainer = {"max_steps": 20, "enable_progress_bar": False}
    config = write_config(tmp_path, path, "Proteins", backbone=backbone, trainer=trainer)
    run = seqdiff.train(config, "--data.length", "10")
    found = run.evaluate(evaluations=2)
    assert [row["name"] for row in found.content()["rows"]] == ["model, upper bound", "unigram"]
    samples = run.sample(3, length=7, seed=0)
    assert all(len(sample) == 7 and "-" not in sample for sample in samples)
    out = tmp_path / "page.html"
    assert main(["report", str(run.directory), "--num", "30", "--out", str(out)]) == 0
    assert out.read_text().count("<img") == 1
    fasta = tmp_path / "one.fasta"
    fasta.write_text(">wild\nACDAC\n")
    words = [
        "variants",
        str(run.directory),
        "--fasta",
        str(fasta),
        "--out",
        str(tmp_path / "v.tsv"),
    ]
    assert main(words) == 0
    assert list(pd.read_csv(tmp_path / "v.tsv", sep="\t")) == [
        "mutant",
        "masked_marginal",
        "blosum62",
    ]


def test_the_network_reads_every_site() -> None:
    torch.manual_seed(0)
    sizes = {"num_embeddings": 5, "num_logits": 4, "length": 6}
    network = SiteNetwork(width=16, layers=1, **sizes).eval()
    tokens = torch.randint(0, 5, (3, 6))
    logits = network(Inputs(tokens))
    where = torch.rand(3, 6) < 0.5
    assert logits.shape == (3, 6, 4)
    assert torch.equal(network(Inputs(tokens), where), logits[where])
    for site in range(6):
        other = tokens.clone()
        other[:, site] = (other[:, site] + 1) % 5
        assert not torch.allclose(network(Inputs(other))[:, 0], logits[:, 0])
    with pytest.raises(ValueError, match="rows of the alignment, 6 long, got 5"):
        network(Inputs(tokens[:, :5]))
    assert network.hidden(Inputs(tokens), 0).shape == network.hidden(Inputs(tokens)).shape


def test_a_run_on_other_tokens_is_refused(trained: Run, tmp_path: Path, capsys) -> None:
    """Commands of proteins are not for DNA, and the other way round."""
    fasta = tmp_path / "dna.fa"
    fasta.write_text(">a\nACGT\n")
    message = fails(["score", "ecoli-promoters", "--protein-fasta", str(fasta)], capsys)
    assert "score.protein_fasta must be used with a run on proteins" in message
    message = fails(["score", str(trained.directory), "--fasta", str(fasta)], capsys)
    assert "score.fasta must be scored by a model of DNA" in message
