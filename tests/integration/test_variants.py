"""``seqdiff variants``, ``ism`` and ``embed``, with valid and invalid input."""

import csv
import gzip
import re
import sys
import tracemalloc
import warnings
from pathlib import Path

import anndata
import numpy as np
import pytest
import vcfpy

from genomics.io.fasta import write_fasta
from genomics.io.genome import Genome
from genomics.io.tracks import open_track
from genomics.io.vcf import Variant
from genomics.sequence import masked_log_probs
from genomics.sequence.alphabet import encode
from genomics.variants import table as tables
from genomics.variants.effects import allele_windows, likelihood_ratios, mutation_effects
from seqdiff.cli.app import main
from seqdiff.likelihood import SmallK
from seqdiff.run import load

CONFIGS = Path(__file__).parents[2] / "configs"
DEMO = CONFIGS / "experiment" / "genomics" / "demo.yaml"
HEAD = "##fileformat=VCFv4.2\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"
CHROM = "ACGTTGCAACCGGTTTAACAGTNNNNNNNNNN"
LINES = [
    "c\t5\trs1\tT\tG,C,<DEL>",
    "c\t6\t.\tA\tC",
    "c\t9\t.\tAC\tA,*",
    "c\t99\t.\tA\tC",
    "c\t25\t.\tN\tC",
]


def train(folder: Path, *flags: str) -> Path:
    run = folder / "run"
    sizes = ["--data.length=12", "--data.num_train=32", "--trainer.max_steps=1"]
    sizes += ["--trainer.enable_progress_bar=false", "--optim.lr=0.3", "--optim.warmup_steps=0"]
    assert main(["train", str(DEMO), f"--output={run}", *sizes, *flags]) == 0
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("dna"), "--backbone.d_model=8")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    write_fasta(tmp_path / "g.fa", ["c"], [CHROM])
    return {"vcf": vcf(tmp_path, LINES), "fasta": tmp_path / "g.fa", "out": tmp_path / "t.tsv"}


def vcf(folder: Path, lines: list[str]) -> Path:
    path = folder / "v.vcf"
    path.write_text(HEAD + "".join(f"{line}\t.\t.\t.\n" for line in lines))
    return path


def snvs(bases: str) -> list[str]:
    """A line for each base of the chromosome c."""
    return [f"c\t{at}\t.\t{b}\t{'C' if b == 'A' else 'A'}" for at, b in enumerate(bases, 1)]


def call(run: Path, files: dict[str, Path], *flags: str) -> list[str]:
    named = [word for key, path in files.items() for word in (f"--{key}", str(path))]
    return ["variants", str(run), *named, *flags]


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_a_line_an_allele_and_what_is_not_scored(run, files, capsys) -> None:
    assert main(call(run, files, "--seed", "3", "--evaluations", "4")) == 0
    said, warned = capsys.readouterr()
    assert "3 of 8 alleles scored, 5 not" in said and re.search(r"\d\/s; llr", said)
    assert "1 REF mismatches" in said and "(upper bound) by small-k" in said
    problems = {
        3: "ALT must consist of ACGT, got '<DEL>'",
        4: "REF A is G in the genome",
        5: "ALT must consist of ACGT, got '*'",
        6: "POS lies outside c, which has 32 bases",
        7: "REF must consist of ACGT, got 'N'",
    }
    for line, problem in problems.items():
        assert f"{files['vcf']}:{line}: not scored: {problem}" in " ".join(warned.split())
    table = read(files["out"])
    assert [(row["line"], row["alt"]) for row in table] == [
        *(("3", "G"), ("3", "C"), ("3", "<DEL>"), ("4", "C")),
        *(("5", "A"), ("5", "*"), ("6", "C"), ("7", "C")),
    ]
    scored = [row for row in table if row["status"].startswith("scored")]
    assert [row["alt"] for row in scored] == ["G", "C", "A"]
    indel = "scored by llr only: an indel has no masked marginal"
    assert [row["status"] for row in scored] == ["scored", "scored", indel]
    assert [row["marginal"] == "NA" for row in scored] == [False, False, True]
    for row in table:
        if not row["status"].startswith("scored"):
            assert row["llr"] == row["marginal"] == "NA"
    loaded, genome = load(run), Genome.from_records({"c": encode(CHROM)})
    effects = mutation_effects(loaded.denoiser, encode(CHROM), window=12)
    for row in scored:
        variant = Variant(0, "c", int(row["pos"]), ".", row["ref"], row["alt"])
        (ratio,) = likelihood_ratios(
            loaded.denoiser,
            [allele_windows(variant, genome, 12)],
            estimator=SmallK(4),
            seed=3,
        )
        printed = [float(row[key]) for key in ("llr", "standard_error", "low", "high")]
        np.testing.assert_allclose(printed, ratio, rtol=0, atol=2e-6)
        if row["marginal"] != "NA":
            want = effects[variant.start, "ACGT".index(row["alt"])]
            assert float(row["marginal"]) == pytest.approx(want, abs=2e-6)


def test_only_what_is_asked_for(run, files, capsys) -> None:
    assert main(call(run, files, "--score", "marginal", "--window", "8")) == 0
    table = read(files["out"])
    assert {row["llr"] for row in table} == {"NA"}
    assert all((row["status"] == "scored") == (row["marginal"] != "NA") for row in table)
    assert [row["status"] for row in table].count("an indel has no masked marginal") == 1
    assert "2 of 8 alleles scored, 6 not" in capsys.readouterr().out
    assert main(call(run, files, "--score", "likelihood", "--evaluations", "2")) == 0
    assert {row["marginal"] for row in read(files["out"])} == {"NA"}


def test_an_annotated_copy_has_the_scores_of_the_table(run, files, tmp_path, capsys) -> None:
    """In the order of ALT, also where a record lies in two shards; what is not scored says why."""
    out = tmp_path / "a.vcf.gz"
    flags = ["--score=marginal", f"--vcf-out={out}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("genomics.variants.table._CHUNK", 2)
        assert main(call(run, files, *flags)) == 0
    assert f"{out}: the records with their scores as INFO fields" in capsys.readouterr().out
    table = read(files["out"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about fields of the original
        records = list(vcfpy.Reader.from_path(str(out)))
    assert len(records) == len(LINES)
    scores = [score for record in records for score in record.INFO.get("SEQDIFF_MARGINAL", [])]
    rows = [row for row in table if row["line"] == "3"]
    assert scores == [None if row["marginal"] == "NA" else float(row["marginal"]) for row in rows]
    assert scores[0] is not None and scores[2] is None and scores[0] != scores[1]
    statuses = [status for record in records for status in record.INFO["SEQDIFF_STATUS"]]
    assert statuses == [row["status"].replace(" ", "_") for row in table]
    assert not any("SEQDIFF_LLR" in record.INFO for record in records)
    alone = [gzip.decompress(out.read_bytes()), files["out"].read_bytes()]
    again = {**files, "vcf": out, "out": tmp_path / "again.tsv"}
    flags[1] = f"--vcf-out={tmp_path / 'again.vcf.gz'}"
    assert main(call(run, again, *flags)) == 0
    assert gzip.decompress((tmp_path / "again.vcf.gz").read_bytes()) == alone[0]


def test_shared_windows_continue_where_they_stopped(run, tmp_path, monkeypatch, capsys) -> None:
    """The same bytes, in the table and in the annotated file."""
    monkeypatch.setattr("seqdiff.run.engine._SECONDS_BETWEEN_SAVES", 0.0)
    monkeypatch.setattr(tables, "_CHUNK", 3)
    monkeypatch.setattr(tables, "_SHARING_CHUNK", 3)
    write_fasta(tmp_path / "g.fa", ["c"], [CHROM])
    given = {"vcf": vcf(tmp_path, snvs(CHROM)), "fasta": tmp_path / "g.fa"}
    flags = ["--score=marginal", "--spacing=2"]
    for name in ("whole", "out"):
        (tmp_path / name).mkdir()
    whole, out = ({**given, "out": tmp_path / name / "t.tsv"} for name in ("whole", "out"))
    assert main(call(run, whole, *flags, f"--vcf-out={tmp_path / 'whole' / 'a.vcf'}")) == 0
    again = [*flags, f"--vcf-out={tmp_path / 'out' / 'a.vcf'}"]
    real, calls = tables._score_shared, []

    def score(*arguments, **options):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(tables, "_score_shared", score)
    assert main(call(run, out, *again)) == 130
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["t.tsv.shards"]
    assert main(call(run, out, *again)) == 0
    assert len(calls) == 4 + 8, "three of eleven shards were finished"
    for name in ("t.tsv", "a.vcf"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    alone = {**given, "out": tmp_path / "alone.tsv"}
    assert main(call(run, alone, "--score=marginal")) == 0
    marginals = [[row["marginal"] for row in read(found["out"])] for found in (whole, alone)]
    assert marginals[0] != marginals[1] and marginals[0].count("NA") == marginals[1].count("NA")
    assert marginals[0][1] == marginals[1][1], "a site that is alone in its shard's window"
    capsys.readouterr()


def test_memory_does_not_grow_with_the_lines(run, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("seqdiff.tables._ROWS_PER_GROUP", 32)
    monkeypatch.setattr(tables, "_CHUNK", 32)
    monkeypatch.setattr(tables, "masked_marginals", lambda _, windows, **rest: [0.0] * len(windows))
    bases = "ACGTTGCAACCGGT" * 120
    genome, loaded, peaks = Genome.from_records({"c": encode(bases)}), load(run), []
    for count in (100, 400, 1600):
        path = vcf(tmp_path, snvs(bases[:count]))
        scoring = tables.Scoring(12, None, True, 0, 32)
        tracemalloc.start()
        tables.write_table(
            tmp_path / "t.tsv",
            [path],
            genome,
            loaded,
            scoring,
            total=count,
            vcf_out=tmp_path / "a.vcf",
        )
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 1.5 * peaks[1], "the twin that holds all rows takes 2.8 times as much"


def test_an_autoregressive_run_is_exact(tmp_path, files, fails, capsys) -> None:
    backbone = CONFIGS / "backbone" / "autoregressive_tiny.yaml"
    trained = train(tmp_path, "--preset=ar", f"--backbone={backbone}", "--backbone.d_model=16")
    assert main(call(trained, files)) == 0
    assert "(exact, left to right) by chain-rule" in capsys.readouterr().out
    scored = [row for row in read(files["out"]) if row["status"] == "scored"]
    assert {float(row["standard_error"]) for row in scored} == {0.0}
    message = fails(call(trained, files, "--evaluations", "4"))
    assert "variants.evaluations must be left out" in message


def test_a_run_of_block_diffusion(tmp_path, files, capsys) -> None:
    backbone = CONFIGS / "backbone" / "block_mamba_118x4.yaml"
    flags = ("--objective=BlockNELBO", "--block_size=4", f"--backbone={backbone}")
    trained = train(tmp_path, *flags, "--backbone.d_model=8", "--backbone.n_layer=2")
    assert main(call(trained, files, "--evaluations", "2")) == 0
    assert "blocks of 4" in capsys.readouterr().out
    records = ["--fasta", str(files["fasta"]), "--out", str(tmp_path / "e.npz")]
    assert main(["embed", str(trained), *records]) == 0
    assert np.load(tmp_path / "e.npz")["embeddings"].shape == (1, 8)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["c\t5\t.\tT\tG", "chr1\t5\t.\tT\tG"], "v.vcf:4: chromosome 'chr1' is not in the FASTA"),
        (["c\t5\t.\tA\tG"], "must hold a variant that can be scored, got"),
        ([], "0 alleles (there is no variant)"),
        (["c\tfive\t.\tA\tG"], "v.vcf:3: not a VCF record"),
    ],
)
def test_files_that_do_not_fit(run, files, fails, tmp_path, lines, message) -> None:
    files["vcf"] = vcf(tmp_path, lines)
    assert message in fails(call(run, files))
    assert not files["out"].exists()


def test_a_truncated_file(run, files, fails) -> None:
    packed = gzip.compress(files["vcf"].read_bytes())
    files["vcf"].write_bytes(packed[:-20])
    assert "v.vcf: the gzip file is truncated" in fails(call(run, files))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--window", "1"], "variants.window must be at least 2, got 1"),
        (["--batch_size", "0"], "variants.batch_size must be at least 1"),
        (["--evaluations", "3"], "SmallK.evaluations must be even"),
        (["--score", "marginal", "--evaluations", "4"], "a masked-marginal score has no draws"),
        (["--seed", "-1"], "variants.seed must be in"),
        (["--spacing", "4"], "variants.spacing must go with --score marginal, got 4"),
        (["--spacing", "0", "--score", "marginal"], "variants.spacing must be at least 1"),
        (["--spacing", "7", "--score", "marginal"], "at most half of the window of 12 bases"),
        (["--vcf-out", "a.tsv"], "variants.vcf_out must end in .vcf or .vcf.gz, got a.tsv"),
        (["--vcf-out", "absent/a.vcf"], "variants.vcf_out must lie in an existing folder"),
    ],
)
def test_arguments_that_do_not_fit(run, files, fails, flags, message) -> None:
    assert message in fails(call(run, files, *flags))
    assert not files["out"].exists()


def test_a_run_of_another_domain(trained, files, fails) -> None:
    assert "variants.directory must be a run on DNA" in fails(call(trained, files))


def test_many_problems_are_counted_not_listed(run, files, tmp_path, capsys) -> None:
    files["vcf"] = vcf(tmp_path, ["c\t5\t.\tT\tG", *["c\t5\t.\tA\tG"] * 15])
    assert main(call(run, files, "--score", "marginal")) == 0
    said, warned = capsys.readouterr()
    assert warned.count("not scored: REF A is T") == 10 and "5 more are not scored" in warned
    assert "1 of 16 alleles scored, 15 not (15 REF mismatches; see status)" in said


def test_mutagenesis(run, files, fails, tmp_path: Path) -> None:
    out = tmp_path / "i.npz"
    write_fasta(files["fasta"], ["one", "two"], ["ACGTN", CHROM])
    command = ["ism", str(run), "--fasta", str(files["fasta"]), "--out"]
    bigwig, bedgraph = tmp_path / "expected.bw", tmp_path / "expected.bedGraph"
    for track in (bigwig, bedgraph):
        assert main([*command, str(out), "--batch_size", "3", "--track", str(track)]) == 0
    found = np.load(out)
    assert found["names"].tolist() == ["one", "two"]
    assert found["sequences"].tolist() == ["ACGTN", CHROM]
    loaded = load(run)
    want = mutation_effects(loaded.denoiser, encode(CHROM), window=12)
    np.testing.assert_allclose(found["effect_1"], want, rtol=0, atol=1e-5)
    assert found["effect_0"].shape == (5, 4) and np.isnan(found["effect_0"][4]).all()
    # log p(base | others) in windows with that base masked, a geometric mean over both strands.
    ids = encode(CHROM)
    lengths = {"one": 5, "two": len(CHROM)}
    for track in (bigwig, bedgraph):
        opened = open_track(track, lengths, lengths)
        values = opened.values("two", 0, len(CHROM))
        for place in (0, 7, 21):
            start = min(max(0, place - 5), len(CHROM) - 12)
            row = ids[None, start : start + 12]
            masked = np.arange(12)[None] == place - start
            log_probs = masked_log_probs(loaded.denoiser, row, masked)[0]
            expected = log_probs[ids[place]] - np.log(np.exp(log_probs).sum())
            assert values[place] == pytest.approx(expected, abs=1e-5)
        assert np.isnan(opened.values("one", 0, 5)).tolist() == [False] * 4 + [True]
    assert "ism.track must end in .bw" in fails([*command, str(out), "--track", "x.tsv"])
    assert "ism.out must end in .npz" in fails([*command, str(tmp_path / "i.tsv")])
    write_fasta(files["fasta"], ["one", "blank"], ["ACGT", "NNNN"])
    out = tmp_path / "none.npz"
    said = f"{files['fasta']}: record 'blank': ism must have a known base, got 4 unknown bases"
    assert said in fails([*command, str(out)]) and not out.exists()


def test_embeddings(run, files, fails, tmp_path: Path) -> None:
    out = tmp_path / "e.npz"
    write_fasta(files["fasta"], ["one", "two", "three"], ["ACGTN", CHROM, "TTTTT"])
    command = ["embed", str(run), "--fasta", str(files["fasta"]), "--out"]
    assert main([*command, str(out), "--layer", "0"]) == 0
    pooled = np.load(out)
    assert pooled["names"].tolist() == ["one", "two", "three"]
    assert pooled["embeddings"].shape == (3, 8)
    assert main([*command, str(out), "--layer", "0", "--pooling", "none"]) == 0
    single = np.load(out)
    assert single["embedding_1"].shape == (len(CHROM), 8)
    np.testing.assert_allclose(
        single["embedding_0"][:4].mean(axis=0), pooled["embeddings"][0], rtol=1e-5
    )
    over_all = single["embedding_0"].mean(axis=0)
    assert np.abs(over_all - pooled["embeddings"][0]).max() > 1e-3, "the twin that pools N"
    h5ad = str(tmp_path / "e.h5ad")
    assert "must end in .npz with --pooling none" in fails([*command, h5ad, "--pooling", "none"])
    assert "must end in .npz or .h5ad" in fails([*command, str(tmp_path / "e.txt")])
    assert "embed.layer must be in" in fails([*command, str(out), "--layer", "9"])
    write_fasta(files["fasta"], ["one", "blank"], ["ACGT", "NNNN"])
    said = fails([*command, str(out)])
    assert f"{files['fasta']}: record 'blank': embed must be given a known base" in said
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main([*command, str(out), "--pooling", "none"]) == 0
    assert np.load(out)["embedding_1"].shape == (4, 8)


def test_anndata(run, files, fails, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["embed", str(run), "--fasta", str(files["fasta"]), "--out"]
    assert main([*command, str(tmp_path / "e.h5ad")]) == 0
    assert main([*command, str(tmp_path / "e.npz")]) == 0
    table, arrays = anndata.read_h5ad(tmp_path / "e.h5ad"), np.load(tmp_path / "e.npz")
    assert list(table.obs_names) == arrays["names"].tolist() == ["c"]
    np.testing.assert_array_equal(table.X, arrays["embeddings"])
    monkeypatch.setitem(sys.modules, "anndata", None)
    assert "pip install -e '.[genomics]'" in fails([*command, str(tmp_path / "e.h5ad")])


def test_real_variants(run: Path, real_data: Path, tmp_path: Path, capsys) -> None:
    files = {
        "vcf": real_data / "variants" / "truvari_multi.chr20_hg38.vcf.gz",
        "fasta": real_data / "hg38" / "hg38_chr20_1-1000000.fa.gz",
        "out": tmp_path / "t.tsv",
    }
    assert main(call(run, files, "--score", "marginal", "--window", "32")) == 0
    assert "of 3,513 alleles scored" in capsys.readouterr().out
    table = read(files["out"])
    assert len(table) == 3513
    assert not any("in the genome" in row["status"] for row in table)
    snvs = [row for row in table if len(row["ref"]) == len(row["alt"]) == 1]
    assert all(np.isfinite(float(row["marginal"])) for row in snvs)
