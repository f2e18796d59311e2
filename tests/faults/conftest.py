"""A small DNA run that tests damage, and files for the commands."""

import shutil
from pathlib import Path

import pytest

from genomics.io import write_fasta
from seqdiff.cli.app import main
from tests.integration.conftest import fails as fails

DEMO = Path(__file__).parents[2] / "configs" / "experiment" / "genomics" / "demo.yaml"
TINY = [
    *("--data.length=12", "--data.num_train=32", "--data.num_valid=8", "--trainer.max_steps=1"),
    *("--trainer.enable_progress_bar=false", "--backbone.d_model=8", "--backbone.n_layer=1"),
]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small DNA run; tests copy it."""
    run = tmp_path_factory.mktemp("dna") / "run"
    assert main(["train", str(DEMO), f"--output={run}", *TINY]) == 0
    return run


@pytest.fixture
def folder(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run, and files that the commands read."""
    shutil.copytree(trained, tmp_path / "RUN")
    write_fasta(tmp_path / "a.fa", ["c"], ["ACGTTGCAACGTACGTTGAC"])
    (tmp_path / "a.vcf").write_text(
        "##fileformat=VCFv4.2\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"
        "c\t10\t.\tC\tG\t.\t.\t.\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path
