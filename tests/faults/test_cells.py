"""Names that a spreadsheet would compute, or a terminal obey."""

import csv
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genomics.design.designs import write_tsv
from seqdiff.cells import describe_error, printable, read_cell, say, write_cell
from seqdiff.cli import app
from seqdiff.cli.app import main
from seqdiff.cli.sample import _print
from seqdiff.run import load

HOSTILE = ["=cmd|'/C calc'!A0", "+1", "-2+3", "@SUM(A1)", "\x1b]0;owned\x07", "a\u202eb", "'=1"]


@given(st.text() | st.from_regex(r"['=+@\\-]{0,3}[\x00-\x20xu0-9]*", fullmatch=True))
def test_cells_are_read_again(text: str) -> None:
    """Every text survives, and no cell acts."""
    cell = write_cell(text)
    assert read_cell(cell) == text
    assert printable(cell) == cell
    assert len(cell) == 1 or not cell.startswith(("=", "+", "-", "@"))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "memory error"),
        (KeyboardInterrupt(), "keyboard interrupt"),
        (ValueError("two\n  lines"), "two lines"),
        (TimeoutError(" "), "timeout error"),
    ],
)
def test_every_exception_has_words(error: BaseException, said: str) -> None:
    assert describe_error(error) == said


def test_a_lack_of_memory_has_words(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    def parse(arguments: list[str]) -> None:
        raise MemoryError

    monkeypatch.setattr(app, "parse", parse)
    assert main(["models"]) == 2
    said = "the memory is too small: memory error; lower the batch size or the length, or take a "
    said += "smaller network"
    assert capsys.readouterr().err == f"seqdiff: error: {said}\n"


def test_lines_for_the_user_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    say("run\x1b[2J: trained")
    say("a\nb", error=True)
    assert capsys.readouterr() == ("run\\x1b[2J: trained\n", "a\\x0ab\n")


@pytest.mark.parametrize("terminal", [True, False])
def test_printed_samples_obey_no_name(
    terminal: bool, trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    """A terminal gets escaped names, and a file or another program gets them as they are."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    _print(load(trained), ["ACG", "TTT"], ["\x1b[2J", "b"])
    lines = capsys.readouterr().out.splitlines()
    assert any("\\x1b[2J" in line for line in lines) == terminal
    assert any("\x1b" in line for line in lines) != terminal
    assert sum("TTT" in line for line in lines) == 1


def test_tables_of_designs_hold_cells() -> None:
    assert write_tsv([{"name": "=1+1", "=a": 0.5}]) == "name\t'=a\n'=1+1\t0.5\n"


@pytest.mark.parametrize("text", ["chr1", "-", "+", "a=b", "1e-5", "e. coli @ 37", ""])
def test_ordinary_cells_do_not_change(text: str) -> None:
    assert write_cell(text) == text


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("'a", "''a"),
        ("a\\b", r"a\\b"),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\tb", r"a\x09b"),
    ],
)
def test_what_is_written(text: str, cell: str) -> None:
    assert write_cell(text) == cell


def test_score_writes_safe_names(folder: Path, capsys) -> None:
    """In the file and on the terminal."""
    names = [name.replace(" ", "_") for name in HOSTILE]
    lines = "".join(f">{name}\nACGTTGCAACGT\n" for name in names)
    (folder / "hostile.fa").write_text(lines)
    assert main(["score", "RUN", "--fasta", "hostile.fa", "--out", "out.tsv"]) == 0
    with (folder / "out.tsv").open(newline="") as file:
        found = [row["record"] for row in csv.DictReader(file, delimiter="\t")]
    assert not [name for name in found if name.startswith(("=", "+", "-", "@"))]
    assert [read_cell(name) for name in found] == names
    said = capsys.readouterr()
    assert "\x1b]0" not in said.out + said.err


def test_variants_write_safe_names(folder: Path) -> None:
    """An identifier of a VCF file is text of its author."""
    (folder / "a.vcf").write_text(
        "##fileformat=VCFv4.2\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"
        "c\t10\t=1+1\tC\tG\t.\t.\t.\n"
    )
    command = "variants RUN --vcf a.vcf --fasta a.fa --out out.tsv --score marginal"
    assert main(command.split()) == 0
    assert "\t'=1+1\t" in (folder / "out.tsv").read_text()


def test_errors_are_printable(folder: Path, fails) -> None:
    """A message that quotes a file does not move the cursor."""
    (folder / "bad.vcf").write_text(
        "##fileformat=VCFv4.2\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"
        "\x1b[2Jc\t10\t.\tC\tG\t.\t.\t.\n"
    )
    command = "variants RUN --vcf bad.vcf --fasta a.fa --out out.tsv"
    assert "\x1b" not in fails(command.split())
