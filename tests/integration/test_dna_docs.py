"""What docs/dna.md shows is run, so that it cannot rot."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from genomics.io.genome import load_genome
from genomics.io.vcf import read_vcf
from genomics.variants.effects import refusal
from seqdiff.cli.app import main, parse

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "dna.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCS, flags=re.DOTALL | re.MULTILINE)


COMMANDS = [line for block in blocks("sh") for line in block.splitlines()]
TO_VCF, COMPARE, STEER = blocks("python")


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_are_valid(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    program, *arguments = shlex.split(line)
    assert program == "seqdiff"
    parse(arguments)


def test_steering_by_an_oracle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    demo = ROOT / "configs" / "experiment" / "genomics" / "demo.yaml"
    flags = ["--data.length=16", "--data.num_train=32", "--trainer.max_steps=0"]
    assert main(["train", str(demo), "--output=runs/mine", *flags, "--backbone.d_model=8"]) == 0
    capsys.readouterr()
    exec(compile(STEER, "docs/dna.md", "exec"), {})
    drawn = re.findall("[ACGT]{16}", capsys.readouterr().out)
    assert len(drawn) == 8
    gc = np.mean([letter in "CG" for row in drawn for letter in row])
    assert gc > 0.6, "128 letters of an untrained model have half their letters G or C without"


def test_brca1(tmp_path: Path, real_data: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """All SNVs agree with the genome; a score that knows the answer has an AUROC of 1."""
    monkeypatch.chdir(tmp_path)
    table = real_data / "variants" / "brca1_sge_findlay2018_hg38.tsv.gz"
    (tmp_path / table.name).symlink_to(table)
    (tmp_path / "chr17.fa.gz").symlink_to(real_data / "hg38" / "chr17_BRCA1.fa.gz")
    exec(compile(TO_VCF, "docs/dna.md", "exec"), {})
    variants, genome = list(read_vcf("brca1.vcf")), load_genome("chr17.fa.gz")
    assert len(variants) == 3893
    assert not any(refusal(variant, genome, 1024) for variant in variants)
    lines = ["chrom\tpos\tid\tref\talt\tmarginal\tstatus"]
    for v in variants:
        known = -float(v.name.startswith("LOF"))
        lines.append(f"{v.chrom}\t{v.pos}\t{v.name}\t{v.ref}\t{v.alt}\t{known}\tscored")
    (tmp_path / "brca1.tsv").write_text("\n".join(lines) + "\n")
    quick = COMPARE.replace("range(1000)", "range(20)")
    exec(compile(quick, "docs/dna.md", "exec"), {})
    said = capsys.readouterr().out
    assert "all: 823 LOF, 2821 FUNC; chance 0.500" in said
    assert "masked marginal 1.000 [1.000, 1.000]" in said
    assert "trinucleotide and change 0.671" in said
