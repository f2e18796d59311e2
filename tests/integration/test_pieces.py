"""Commands read files in pieces as if they were one, and write tables and samples in parts."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from genomics.io.fasta import write_fasta
from seqdiff import tables
from seqdiff.cli import sample as sample_command
from seqdiff.cli.app import main
from seqdiff.run import load
from seqdiff.run.engine import EngineOptions
from tests.integration.test_variants import CHROM, HEAD, LINES, read, train

RECORDS = {"a": "ACGTAC", "b": "ACG", "c": "TTGNCA", "d": "GGA", "e": "ACCCCC", "f": "ACGTTTT"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on DNA, a genome, and records and variants in one file and in three."""
    folder = tmp_path_factory.mktemp("world")
    train(folder, "--backbone.d_model=8")
    write_fasta(folder / "g.fa", ["c"], [CHROM])
    names, (records, variants) = list(RECORDS), (folder / "records", folder / "variants")
    records.mkdir()
    variants.mkdir()
    write_fasta(folder / "whole.fa", names, list(RECORDS.values()))
    lines = [f"{line}\t.\t.\t.\n" for line in LINES]
    (folder / "whole.vcf").write_text(HEAD + "".join(lines))
    longer = HEAD.replace("\n", "\n##a=b\n", 1)
    for number, head in enumerate((HEAD, longer, HEAD)):
        rows = slice(2 * number, 2 * number + 2)
        write_fasta(records / f"{number}.fa", names[rows], [RECORDS[n] for n in names[rows]])
        (variants / f"{number}.vcf").write_text(head + "".join(lines[rows]))
    for path in (records / "1.fa", variants / "1.vcf"):
        with gzip.open(f"{path}.gz", "wb") as zipped:
            zipped.write(path.read_bytes())
        path.unlink()
    return folder


COMMANDS = {
    "score": ([], ["--fasta"], "fa", "a.tsv", ["--rc=mean", "--evaluations=2"]),
    "embed": (["--fasta"], [], "fa", "a.npz", ["--batch-size=2"]),
    "ism": (["--fasta"], [], "fa", "a.npz", ["--batch-size=2"]),
    "variants": (["--vcf"], [], "vcf", "a.tsv", ["--fasta=g.fa", "--evaluations=2"]),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_pieces_are_read_as_one_file(
    world: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(world)
    option, alone, suffix, out, flags = COMMANDS[name]
    pieces = "variants" if suffix == "vcf" else "records"

    def result(*given: str) -> bytes:
        assert main([name, "run", *given, f"--out={tmp_path / out}", *flags]) == 0
        return (tmp_path / out).read_bytes()

    wanted = result(*option, f"whole.{suffix}")
    listed = sorted(map(str, Path(pieces).iterdir()), reverse=True)
    for given in (listed, [pieces], [f"{pieces}/*.{suffix}*"]):
        assert result(*option, *given) == wanted
    if alone:
        assert result(*alone, pieces) == wanted
    first = result(*option, listed[-1])
    assert len(first) < len(wanted)


def test_variants_name_the_line_of_their_own_file(world: Path, tmp_path: Path, capsys) -> None:
    flags = ["--score=marginal", f"--fasta={world / 'g.fa'}", f"--out={tmp_path / 'a.tsv'}"]
    assert main(["variants", str(world / "run"), "--vcf", str(world / "variants"), *flags]) == 0
    said = "".join(capsys.readouterr().err.split())
    for file, line in (("0.vcf", 3), ("1.vcf.gz", 5), ("2.vcf", 3)):
        assert f"{world / 'variants' / file}:{line}:notscored:" in said
    lines = [int(row["line"]) for row in read(tmp_path / "a.tsv")]
    assert lines == [3, 3, 3, 4, 5, 5, 6, 7], "of all files under the header of the first"


def test_a_name_in_two_files_names_both(world: Path, tmp_path: Path, fails) -> None:
    write_fasta(tmp_path / "0.fa", ["a"], ["ACG"])
    write_fasta(tmp_path / "1.fa", ["b", "a"], ["ACG", "ACT"])
    for name, option, out in (
        ("score", [], "a.tsv"),
        ("embed", ["--fasta"], "a.npz"),
        ("ism", ["--fasta"], "a.npz"),
    ):
        command = [name, str(world / "run"), *option, str(tmp_path), f"--out={tmp_path / out}"]
        message = fails(command)
        assert f"{tmp_path / '1.fa'}: record 'a': two files must not have" in message
        assert f"got one in {tmp_path / '0.fa'} too" in message
    (tmp_path / "2.txt").write_text("ACG")
    message = fails(["score", str(world / "run"), *map(str, sorted(tmp_path.iterdir()))])
    assert f"files of one format, got {tmp_path / '0.fa'} and {tmp_path / '2.txt'}" in message


def test_python_scores_a_folder(world: Path) -> None:
    run = load(world / "run")
    whole = run.score(world / "whole.fa", evaluations=2)
    assert run.score(world / "records", evaluations=2).rows == whole.rows


def test_finished_shards_are_those_of_all_pieces(world: Path, tmp_path: Path) -> None:
    """A change in the second piece is found."""
    run, folder = load(world / "run"), tmp_path / "a.tsv.shards"
    files = [tmp_path / "0.fa", tmp_path / "1.fa"]
    for path in files:
        write_fasta(path, ["a"], ["ACGT"])

    def start() -> None:
        options = EngineOptions(engine="ray")
        engine = options.start("score", run, tmp_path / "a.tsv", "cpu", {"file": files}, {})
        engine.finished.save({0: {"x": np.zeros(1)}})  # type: ignore[attr-defined]

    start()
    start()
    write_fasta(files[1], ["a"], ["ACGA"])
    with pytest.raises(ValueError, match="must be continued by the command that began it, got the"):
        start()
    assert folder.is_dir()


@pytest.mark.parametrize("name", ["score", "variants"])
def test_parquet_is_the_table(
    world: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_ROWS_PER_GROUP", 2)
    monkeypatch.setattr(tables, "ROWS_PER_PART", 4)
    monkeypatch.chdir(world)
    option, _, suffix, _, flags = COMMANDS[name]
    for out in ("a.tsv", "a.parquet", "p*.parquet"):
        assert (
            main([name, "run", *option, f"whole.{suffix}", f"--out={tmp_path / out}", *flags]) == 0
        )
    assert len(list(tmp_path.glob("p*.parquet"))) == 2
    whole = pq.read_table(tmp_path / "a.parquet")
    rows = whole.to_pylist()
    assert rows == [
        row for path in sorted(tmp_path.glob("p*")) for row in pq.read_table(path).to_pylist()
    ]
    folder = tmp_path / "folder"
    folder.mkdir()
    assert (
        main([name, "run", *option, f"whole.{suffix}", f"--out={folder / '*.parquet'}", *flags])
        == 0
    )
    assert len(pd.read_parquet(folder)) == len(rows)
    spelled = [{k: tables.spell(v) for k, v in row.items()} for row in rows]
    assert spelled == read(tmp_path / "a.tsv")
    assert any(value is None for row in rows for value in row.values()) == (name == "variants")


def test_samples_in_parts_are_those_in_one_file(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails
) -> None:
    monkeypatch.setattr(sample_command, "ROWS_PER_PART", 3)
    command = ["sample", str(world / "run"), "--num=7", "--seed=0"]
    for out in ("whole.fa", "part-*.fa"):
        assert main([*command, f"--out={tmp_path / out}"]) == 0
    parts = [tmp_path / f"part-0000{number}.fa" for number in range(3)]
    assert sorted(tmp_path.iterdir()) == [*parts, tmp_path / "whole.fa"]
    assert "".join(path.read_text() for path in parts) == (tmp_path / "whole.fa").read_text()
    message = fails([*command, f"--out={tmp_path / 'part-*.fa'}"])
    assert "sample.out must be parts that do not exist yet" in message
