"""Motif files, and motif hits against scoring every position by hand."""

import gzip
import re
from pathlib import Path

import numpy as np
import pytest

from genomics.data.sources import consensus_matrix
from genomics.io.motifs import MotifScores, consensus, count_hits, read_motifs, write_motifs
from genomics.sequence.alphabet import encode, reverse_complement

JASPAR = """>MA1.1\tFIRST
A [ 10 0 0 5 ]
C [ 0 10 0 5 ]
G [ 0 0 10 5 ]
T [ 0 0 0 5 ]
"""
PLAIN = ">MA1.1 FIRST\n10 0 0 5\n0 10 0 5\n0 0 10 5\n0 0 0 5\n"
COLUMNS = "# a comment\n>MA1.1_FIRST\n10\t0\t0\t0\n0\t10\t0\t0\n0\t0\t10\t0\n5\t5\t5\t5\n1 2 3 4\n"
MEME = """MEME version 4

ALPHABET= ACGT

Background letter frequencies
A 0.25 C 0.25 G 0.25 T 0.25

MOTIF MA1.1 FIRST
letter-probability matrix: alength= 4 w= 4 nsites= 10 E= 0
 1 0 0 0
 0 1 0 0
 0 0 1 0
 0.25 0.25 0.25 0.25
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "motifs.txt"
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", [JASPAR, PLAIN, MEME], ids=["jaspar", "plain", "meme"])
@pytest.mark.parametrize("zipped", [False, True])
def test_formats(tmp_path: Path, text: str, zipped: bool) -> None:
    path = written(tmp_path, text)
    if zipped:
        path.write_bytes(gzip.compress(text.encode()))
    (motif,) = read_motifs(path)
    assert motif.name.startswith("MA1.1")
    high, low = np.log2(4 * 1.0025 / 1.01), np.log2(4 * 0.0025 / 1.01)
    expected = np.full((4, 4), low)
    expected[[0, 1, 2], [0, 1, 2]], expected[3] = high, 0
    np.testing.assert_allclose(motif.scores, expected, atol=2e-3)
    assert motif.threshold == pytest.approx(0.8 * 3 * high, abs=1e-2)


def test_a_row_for_each_position(tmp_path: Path) -> None:
    (motif,) = read_motifs(written(tmp_path, COLUMNS))
    assert motif.name == "MA1.1_FIRST" and motif.scores.shape == (5, 4)
    assert motif.scores[:3].argmax(axis=1).tolist() == [0, 1, 2]


def test_hits_by_hand(tmp_path: Path) -> None:
    """ACGN: ACG and its reverse complement CGT, where a fourth base follows or precedes."""
    motifs = read_motifs(written(tmp_path, JASPAR))
    rows = [encode(text) for text in ("ACGTT", "ACG", "TTACGNACG", "GGCGTA")]
    # ACGT counts on either strand; in the first row CGTT does not end with a reverse complement of
    # ACGN, but ACGT does.
    assert count_hits(motifs, rows).tolist() == [3]
    assert count_hits(motifs, [encode("ACGTT")]).tolist() == [2]
    assert count_hits(motifs, []).tolist() == [0]


@pytest.mark.parametrize("bits", [1.0, 0.1, 0.7])
def test_four_fifths_of_the_best_score_is_a_hit(bits: float) -> None:
    """AAAAA scores 5 bits; four A score exactly the threshold, three too few."""
    scores = np.zeros((5, 4))
    scores[:, 0] = bits
    found = [
        int(count_hits([MotifScores("A", scores)], [encode(t)])[0])
        for t in ("AAAAA", "AACAA", "GAAAA", "AACAC")
    ]
    assert found == [1, 1, 1, 0]


def test_hits_of_many_motifs_of_several_widths(monkeypatch) -> None:
    monkeypatch.setattr("genomics.io.motifs._BLOCK", 37)
    generator = np.random.default_rng(0)
    motifs = [
        MotifScores(str(i), np.log2(4 * generator.dirichlet([0.3] * 4, size=width) + 1e-3))
        for i, width in enumerate([3, 5, 5, 8, 8, 3])
    ]
    rows = [generator.choice(5, 60, p=[0.24] * 4 + [0.04]).astype(np.uint8) for _ in range(8)]
    expected = np.zeros(len(motifs), dtype=int)
    for place, motif in enumerate(motifs):
        width = len(motif.scores)
        for row in rows:
            for strand in (row, reverse_complement(row)):
                for start in range(len(strand) - width + 1):
                    word = strand[start : start + width]
                    if (word < 4).all():
                        score = sum(motif.scores[j, base] for j, base in enumerate(word))
                        expected[place] += score >= motif.threshold - 1e-9
    assert count_hits(motifs, rows).tolist() == expected.tolist()
    assert (expected > 0).any()


def test_written_motifs_are_read_again(tmp_path: Path) -> None:
    matrices = [consensus_matrix("TTGGCNNNGCCAA", 0.97), consensus_matrix("ACGT", 0.9)]
    names = [consensus(matrix) for matrix in matrices]
    assert names == ["TTGGCNNNGCCAA", "ACGT"]
    path = tmp_path / "m.jaspar"
    write_motifs(path, names, matrices)
    found = read_motifs(path)
    assert [motif.name for motif in found] == names
    for motif, matrix in zip(found, matrices, strict=True):
        expected = np.log2(4 * (matrix + 0.0025) / 1.01)
        np.testing.assert_allclose(motif.scores, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": the motif file is empty"),
        ("\n\n# nothing\n", ": the motif file is empty"),
        ("chr1\t0\t100\n", r":1: not a motif file: it starts with 'chr1\\t0\\t100'"),
        (">seq\nACGTTGCA\n", r":2: must be counts of a base, as in A \[ 3 0 12 \], got 'ACGTTGCA'"),
        (JASPAR.replace("G [ 0 0", "G [ 0 x"), r":4: must be counts of a base.*got 'G \[ 0 x"),
        (JASPAR.replace("G [ 0 0 10 5 ]\n", ""), r":1: a motif must have four rows of one length"),
        (JASPAR + ">MA2.1\n", r":1: a motif must have four rows|:6: a motif must have four rows"),
        (
            "#\n" + JASPAR + JASPAR.replace("5 ]", "0 ]"),
            r":7: motif MA1.1 FIRST must have counts at each position, got none at position 4",
        ),
        (COLUMNS.replace("1 2 3 4", "0 0 0 0"), r":2: motif MA1.1_FIRST must have .* position 5"),
        (MEME.replace("0 1 0 0", "0 0 0 0"), r":8: motif .* must have counts .* position 2"),
        (
            MEME.replace("w= 4", "w= 7"),
            ":14: must have 3 more rows.*got 'end of file'",
        ),
        (MEME.replace("w= 4", "w= 3"), ":13: must have 0 more rows.*got '0.25 0.25"),
        (MEME.replace("0 1 0 0", "0 1 0"), r":11: must have 3 more rows.*got '0 1 0'"),
        (MEME.replace("0 0 1 0", "0 0 x 0"), r":12: must have 2 more rows"),
        (MEME.replace(" 0 1 0 0\n", ""), r":13: must have 1 more rows.*'end of file'"),
        (MEME.partition("MOTIF")[0], "must be a motif file|must hold a matrix for each"),
        (MEME + "\nMOTIF MA2.1\n", r":15: a motif must have a letter-probability matrix, got"),
        (MEME.replace("MOTIF", "MOTIF A\n\nMOTIF"), r":8: a motif must have .*'MOTIF A' without"),
        (MEME.replace("MOTIF", "MOTTO"), r":9: a matrix must follow its own MOTIF line"),
    ],
)
def test_what_is_no_motif_file(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ValueError, match=message) as caught:
        read_motifs(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_binary_files_and_missing_ones(tmp_path: Path) -> None:
    path = tmp_path / "m.gz"
    path.write_bytes(gzip.compress(JASPAR.encode())[:-9])
    with pytest.raises(ValueError, match=re.escape(f"{path}: the gzip file is truncated")):
        read_motifs(path)
    path.write_bytes(b"\x00\xff\xfe")
    with pytest.raises(ValueError, match="not a readable motif file"):
        read_motifs(path)
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_motifs(tmp_path / "none")


def test_real_files(real_data: Path) -> None:
    jaspar = read_motifs(real_data / "motifs" / "JASPAR2022_vertebrates.pfm.gz")
    meme = read_motifs(real_data / "motifs" / "test2.meme")
    assert (len(jaspar), len(meme)) == (838, 4)
    assert jaspar[0].scores.argmax(axis=1).tolist() == [1, 0, 1, 2, 3, 2], "Arnt binds CACGTG"
