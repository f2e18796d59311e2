"""VCF files: lines, alleles, and invalid files."""

import gzip
import io
from pathlib import Path

import pytest
import vcfpy
from Bio import bgzf

from genomics.io.genome import load_genome
from genomics.io.vcf import InfoField, Variant, annotating_vcf, read_vcf
from genomics.sequence.alphabet import decode

HEAD = "##fileformat=VCFv4.2\n##INFO=<ID=DP>\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO"
BODY = (
    "\tFORMAT\tNA1\n"
    "chr1\t3\trs1;x\ta\tg,<DEL>\t60\tq10\tDP=no number\tGT:??\t0|1\n"
    "\n"
    "chr2\t1\t.\tAC\t*\t.\t.\t.\tGT\t./.\n"
    "chr2\t9\t.\tN\t.\t.\t.\t.\tGT\t./.\n"
)
EXPECTED = [
    Variant(4, "chr1", 3, "rs1;x", "A", "G"),
    Variant(4, "chr1", 3, "rs1;x", "A", "<DEL>"),
    Variant(6, "chr2", 1, ".", "AC", "*"),
    Variant(7, "chr2", 9, ".", "N", "."),
]


def bgzipped(path: Path, text: str) -> Path:
    with bgzf.BgzfWriter(str(path)) as stream:
        stream.write(text)
    return path


def written(path: Path, text: str) -> Path:
    path.write_text(text, newline="")
    return path


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("kind", ["plain", "gzip", "bgzip"])
def test_alleles_and_their_lines(tmp_path: Path, kind: str, ending: str, recwarn) -> None:
    text = (HEAD + BODY).replace("\n", ending)
    path = tmp_path / "v.vcf"
    if kind == "plain":
        written(path, text)
    elif kind == "gzip":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        bgzipped(path, text)
    assert list(read_vcf(path)) == EXPECTED
    assert not recwarn.list, "nothing is said of genotypes and INFO, which are not read"
    assert EXPECTED[0].start == 2


def test_a_file_without_genotypes_or_lines(tmp_path: Path) -> None:
    assert list(read_vcf(written(tmp_path / "v.vcf", HEAD + "\n"))) == []
    text = HEAD + "\nchr1\t3\t.\tA\tC\t.\t.\t."
    assert list(read_vcf(written(tmp_path / "v.vcf", text))) == [
        Variant(4, "chr1", 3, ".", "A", "C")
    ]


def test_breakends_are_alleles_that_are_not_bases(tmp_path: Path) -> None:
    """Malformed ones too, at which vcfpy fails; the lines after them are read."""
    alts = ["G]17:198982]", "]13:123456]T", "C[<ctg1>:7[", "[2JG", "G[", "a]b]c]", "<DEL>"]
    lines = [f"chr1\t{n}\t.\tA\t{alt},C\t.\t.\t.\n" for n, alt in enumerate(alts, 1)]
    found = list(read_vcf(written(tmp_path / "v.vcf", f"{HEAD}\n" + "".join(lines))))
    assert [v.alt for v in found[1::2]] == ["C"] * len(alts)
    assert [v.alt for v in found[::2]] == [
        *("G]17:198982]", "]13:123456]T", "C[<CTG1>:7["),
        *("<BND>", "<BND>", "<BND>", "<DEL>"),
    ]


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("chr1\t3\t.\tA\tC\t.\t.", ":5: not a VCF record"),
        ("chr1\tx\t.\tA\tC\t.\t.\t.", ":5: not a VCF record"),
        ("chr1 3 . A C . . .", ":5: not a VCF record"),
    ],
)
def test_a_line_that_is_no_record(tmp_path: Path, line: str, place: str) -> None:
    path = written(tmp_path / "v.vcf", f"{HEAD}\nchr1\t2\t.\tA\tC\t.\t.\t.\n{line}\n")
    with pytest.raises(ValueError, match=f"{path}{place}"):
        list(read_vcf(path))


@pytest.mark.parametrize("text", ["", "chr1\t1\n", ">chr1\nACGT\n", "##fileformat=VCFv4.2\nx\n"])
def test_a_file_that_is_no_vcf(tmp_path: Path, text: str) -> None:
    path = written(tmp_path / "v.vcf", text)
    with pytest.raises(ValueError, match=rf"{path}:\d+: not a VCF header"):
        list(read_vcf(path))


def test_truncated_and_damaged_files(tmp_path: Path) -> None:
    lines = "".join(f"chr1\t{n}\t.\tA\tC\t.\t.\t.\n" for n in range(1, 20000))
    text = f"{HEAD}\n{lines}"
    whole = bgzipped(tmp_path / "v.vcf.gz", text).read_bytes()
    cut = tmp_path / "cut.vcf.gz"
    for size in (len(whole) - 28, len(whole) // 2):
        cut.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=f"{cut}: the bgzip file is truncated"):
            list(read_vcf(cut))
    packed = gzip.compress(text.encode())
    cut.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(ValueError, match=f"{cut}: the gzip file is truncated"):
        list(read_vcf(cut))
    cut.write_bytes(gzip.compress(b"\xff\xfe\x00"))
    with pytest.raises(ValueError, match=f"{cut}: not a readable VCF file"):
        list(read_vcf(cut))
    with pytest.raises(FileNotFoundError, match="no such file"):
        list(read_vcf(tmp_path / "absent.vcf"))


FIELDS = [
    InfoField("SCORE", "A", "Float", "Nats, of each ALT"),
    InfoField("WHY", ".", "String", "The reason"),
]
ANNOTATED = (
    "##fileformat=VCFv4.2\n"
    '##INFO=<ID=AF,Number=A,Type=Float,Description="é, frequency">\n'
    '##INFO=<ID=SCORE,Number=1,Type=Integer,Description="old">\n'
    "##contig=<ID=chr1>\n"
    "#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\tFORMAT\té1\n"
    "chr1\t3\trs1;x\ta\tg,<DEL>,]13:12[\t60.0\tq10;q2\tAF=0.50,1e-5,.;SCORE=7;DB\tGT:X\t0|1:?\n"
    "\n"
    "chr1\t4\t.\tA\t.\t.\t.\t.\tGT:X\t./.:.\n"
)
VALUES = [
    {"SCORE": ["-0.250000", None, None], "WHY": ["scored", "a; b=c, 100% d", "x"]},
    {"WHY": ["no ALT"]},
    {"SCORE": ["1.5"]},
]


@pytest.mark.filterwarnings("ignore")  # of vcfpy, about what the header does not declare
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["out.vcf", "out.vcf.gz"])
def test_an_annotated_copy_keeps_everything_else(tmp_path: Path, name: str, ending: str) -> None:
    first = written(tmp_path / "a.vcf", ANNOTATED.replace("\n", ending))
    head, body = ANNOTATED.split("##contig")
    more = head.replace("AF,Number=A", "AF,Number=.") + "##contig=<ID=chr2>\n##contig" + body
    more = more[: more.index("chr1\t3")] + "chr2\t9\t.\tC\tT\t.\t.\tAF=.\tGT\t1\n"
    second = tmp_path / "b.vcf"
    second.write_bytes(gzip.compress(more.encode()))
    out = tmp_path / name
    with annotating_vcf(out, [first, second], FIELDS) as write:
        for values in VALUES:
            write(values)
        assert not out.exists()
    data = out.read_bytes()
    if name.endswith("gz"):
        assert data.endswith(bgzf._bgzf_eof) and data[12:14] == b"BC", "blocks, for tabix"
        data = gzip.decompress(data)
    lines = data.decode().split("\n")
    assert lines[:6] == [
        *ANNOTATED.split("\n")[:2],
        "##contig=<ID=chr1>",
        "##contig=<ID=chr2>",
        '##INFO=<ID=SCORE,Number=A,Type=Float,Description="Nats, of each ALT">',
        '##INFO=<ID=WHY,Number=.,Type=String,Description="The reason">',
    ]
    info = "AF=0.50,1e-5,.;DB;SCORE=-0.250000,.,.;WHY=scored,a%3B_b%3Dc%2C_100%25_d,x"
    assert lines[6:] == [
        "#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\tFORMAT\té1",
        f"chr1\t3\trs1;x\ta\tg,<DEL>,]13:12[\t60.0\tq10;q2\t{info}\tGT:X\t0|1:?",
        "chr1\t4\t.\tA\t.\t.\t.\tWHY=no_ALT\tGT:X\t./.:.",
        "chr2\t9\t.\tC\tT\t.\t.\tAF=.;SCORE=1.5\tGT\t1",
        "",
    ]
    text = data.decode().replace(",]13:12[", ",<BND>")  # at which vcfpy stops
    records = list(vcfpy.Reader.from_stream(io.StringIO(text)))
    found = [(record.INFO.get("SCORE"), record.INFO.get("WHY")) for record in records]
    assert found == [
        ([-0.25, None, None], ["scored", "a;_b=c,_100%_d", "x"]),
        (None, ["no_ALT"]),
        ([1.5], None),
    ]


def test_files_with_other_samples_are_not_joined(tmp_path: Path) -> None:
    first = written(tmp_path / "a.vcf", ANNOTATED)
    second = written(tmp_path / "b.vcf", ANNOTATED.replace("\té1", "\tNA2\tNA3"))
    out = tmp_path / "out.vcf"
    message = r"b.vcf: must have the columns of .*a.vcf to be .* got 2 samples from 'NA2' on, and"
    with (
        pytest.raises(ValueError, match=message),
        annotating_vcf(out, [first, second], FIELDS),
    ):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"a.vcf", "b.vcf"}


def test_a_real_file_agrees_with_its_genome(real_data: Path) -> None:
    genome = load_genome(real_data / "hg38" / "hg38_chr20_1-1000000.fa.gz")
    variants = list(read_vcf(real_data / "variants" / "truvari_multi.chr20_hg38.vcf.gz"))
    assert len(variants) == 3513
    assert sum(len(v.ref) == len(v.alt) == 1 for v in variants) == 2608

    def mismatches(shift: int) -> int:
        chromosome = genome.record("chr20")
        starts = [(v, v.start + shift) for v in variants]
        return sum(decode(chromosome[at : at + len(v.ref)]) != v.ref for v, at in starts)

    assert mismatches(0) == 0
    assert mismatches(1) > 2000, "the twin that takes POS for 0-based"
