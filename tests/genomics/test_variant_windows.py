"""The windows of both alleles, against hand-written sequences."""

import pytest

from genomics.io.genome import Genome
from genomics.io.vcf import Variant
from genomics.sequence.alphabet import decode, encode
from genomics.variants.effects import allele_windows, refusal

#                                0123456789
GENOME = Genome.from_records({"c": encode("AACCGGTTAC"), "n": encode("ACGTANNNNN")})


def at(pos: int, ref: str, alt: str, chrom: str = "c") -> Variant:
    return Variant(7, chrom, pos, ".", ref, alt)


@pytest.mark.parametrize(
    ("variant", "window", "ref", "alt", "changed"),
    [
        (at(5, "G", "T"), 5, "CCGGT", "CCTGT", "00100"),
        (at(5, "G", "T"), 4, "CGGT", "CTGT", "0100"),  # four bases have no middle
        (at(1, "A", "T"), 5, "AACCG", "TACCG", "10000"),
        (at(10, "C", "T"), 5, "GTTAC", "GTTAT", "00001"),
        (at(5, "GG", "TC"), 6, "CCGGTT", "CCTCTT", "001100"),
        (at(5, "GGT", "GCT"), 7, "CCGGTTA", "CCGCTTA", "0001000"),
        (at(4, "CG", "C"), 6, "ACCGGT", "ACCGTT", None),  # the end is filled after a deletion
        (at(4, "C", "CAA"), 7, "ACCGGTT", "ACCAAGG", None),
        (at(10, "C", "CGT"), 5, "GTTAC", "TACGT", None),  # no further bases to the right
        (at(1, "AA", "A"), 5, "AACCG", "ACCGG", None),
        (at(3, "CCGG", "TA"), 6, "ACCGGT", "ATATTA", None),  # both alleles have several bases
        (at(5, "GGT", "GA"), 5, "CGGTT", "CGATA", None),
        (at(8, "TAC", "T"), 5, "GTTAC", "CGGTT", None),
        (at(5, "G", "T"), 99, "AACCGGTTAC", "AACCTGTTAC", "0000100000"),
        (at(8, "TAC", "T"), 99, "CCGGTTAC", "AACCGGTT", None),
    ],
)
def test_windows(variant: Variant, window: int, ref: str, alt: str, changed: str | None) -> None:
    assert refusal(variant, GENOME, window) is None
    found = allele_windows(variant, GENOME, window)
    assert (decode(found.ref), decode(found.alt)) == (ref, alt)
    if changed is None:
        assert found.changed is None
    else:
        assert found.changed is not None
        assert "".join("01"[c] for c in found.changed.tolist()) == changed


def test_a_deletion_that_leaves_several_bases_starts_where_ref_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Broken twin: starts one base later where len(ref) > len(alt) > 1."""
    variant = at(3, "CCGG", "TA")
    assert variant.start == 2 and refusal(variant, GENOME, 6) is None
    late = property(lambda v: v.pos - (not len(v.ref) > len(v.alt) > 1))
    monkeypatch.setattr(Variant, "start", late)
    found = refusal(variant, GENOME, 6)
    assert found is not None and found.mismatch


@pytest.mark.parametrize(
    ("variant", "reason", "mismatch"),
    [
        (at(5, "A", "T"), "REF A is G in the genome", True),
        (at(6, "A", "T", "n"), "REF A is N in the genome", True),
        (at(6, "N", "T", "n"), "REF must consist of ACGT, got 'N'", False),
        (at(5, "G", "<DEL>"), "ALT must consist of ACGT, got '<DEL>'", False),
        (at(5, "G", "*"), "ALT must consist of ACGT, got '*'", False),
        (at(5, "G", "."), "ALT must consist of ACGT, got '.'", False),
        (at(5, "G", "R"), "ALT must consist of ACGT, got 'R'", False),
        (at(5, "G", "G"), "ALT equals REF", False),
        (at(11, "G", "T"), "POS lies outside c, which has 10 bases", False),
        (at(10, "CA", "T"), "POS lies outside c, which has 10 bases", False),
        (at(0, "A", "T"), "POS lies outside c, which has 10 bases", False),
        (
            at(5, "G", "GAAAAA"),
            "an allele of 6 bases leaves no context in a window of 6",
            False,
        ),
        (
            at(4, "T", "TA", "n"),
            "N nearby leaves 4 known bases in the window with REF, 5 with ALT",
            False,
        ),
    ],
)
def test_what_cannot_be_scored(variant: Variant, reason: str, mismatch: bool) -> None:
    assert refusal(variant, GENOME, 6) == (reason, mismatch)


def test_a_chromosome_that_the_genome_lacks() -> None:
    with pytest.raises(ValueError, match=r"chromosome 'chr1' is not in the FASTA file, .* c, n"):
        refusal(at(1, "A", "T", "chr1"), GENOME, 6)
