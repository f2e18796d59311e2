import gzip

import pytest

from genomics.io.bed import read_bed
from genomics.sequence.intervals import Interval


def bed(tmp_path, text):
    path = tmp_path / "x.bed"
    path.write_text(text)
    return path


def test_columns_comments_and_headers(tmp_path):
    path = bed(
        tmp_path,
        "# made by hand\nbrowser position chr1\ntrack name=x\n\n"
        "chr1\t0\t10\nchr1\t5\t20\ttrain\nchr2\t7\t8\ta b\t0\t-\r\nchr2 1 2 test 9 +\n",
    )
    assert read_bed(path) == [
        Interval("chr1", 0, 10),
        Interval("chr1", 5, 20, "train"),
        Interval("chr2", 7, 8, "a b", "-"),
        Interval("chr2", 1, 2, "test", "+"),
    ]


def test_columns_can_be_chosen_and_files_compressed(tmp_path):
    path = tmp_path / "genes.bed.gz"
    path.write_bytes(gzip.compress(b"chr1\t65419\t71585\t+\tOR4F5\n"))
    assert read_bed(path, name_column=5, strand_column=4) == [
        Interval("chr1", 65_419, 71_585, "OR4F5", "+")
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("chr1\t5", "a BED row needs chrom, start and end, got 2 columns; separate them by tabs"),
        ("chrom\tstart\tend", "start and end must be whole numbers, got 'start' and 'end'"),
        ("chr1\t1.5\t9", r"whole numbers, got '1\.5' and '9'"),
        ("chr1\t9\t9", r"Interval\.start must be below end, got \[9, 9\); BED is half-open"),
        ("chr1\t9\t3", r"Interval\.start must be below end, got \[9, 3\)"),
        ("chr1\t-1\t3", r"Interval\.start must not be negative, got -1; BED is 0-based"),
        ("chr1\t0\t101", "end 101 is outside chr1, which has 100 bases; use the genome build"),
        ("1\t0\t10", "chromosome '1' is not in the FASTA file, which has chr1, chr2; use matching"),
        ("chr1\t0\t10\tx\t0\tplus", r"Interval\.strand must be one of \+, -, \., got 'plus'"),
    ],
)
def test_bad_rows_are_named_by_file_and_line(tmp_path, row, message):
    path = bed(tmp_path, f"#\nchr2\t0\t50\n{row}\n")
    with pytest.raises(ValueError, match=message) as caught:
        read_bed(path, {"chr1": 100, "chr2": 50})
    assert str(caught.value).startswith(f"{path}:3: ")
    assert "\n" not in str(caught.value)


def test_the_last_base_is_inside(tmp_path):
    assert len(read_bed(bed(tmp_path, "chr1\t99\t100\n"), {"chr1": 100})) == 1


def test_bad_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no\.bed: no such file"):
        read_bed(tmp_path / "no.bed")
    with pytest.raises(ValueError, match="no intervals in the BED file; it needs at least one row"):
        read_bed(bed(tmp_path, "# nothing\n"))
    packed = gzip.compress(b"chr1\t0\t10\n" * 100)
    path = tmp_path / "x.bed.gz"
    path.write_bytes(packed[:-10])
    with pytest.raises(ValueError, match="the gzip file is truncated; fetch it again"):
        read_bed(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not a readable BED file"):
        read_bed(path)


def test_real_intervals(real_data):
    rows = read_bed(real_data / "splits" / "akita_sequences_hg38.bed.gz")
    assert len(rows) == 7840
    assert rows[0] == Interval("chrX", 124_157_952, 125_206_528, "train")
    assert {row.name for row in rows} == {"train", "valid", "test"}
    assert {row.end - row.start for row in rows} == {1 << 20}
