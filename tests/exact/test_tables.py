"""Tables as text and as Parquet, in one file and in parts."""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqdiff import tables
from seqdiff.tables import Cell, check_table, writing_table

COLUMNS = {"name": str, "size": int, "bits/base": float}
ROWS: list[tuple[Cell, ...]] = [
    ("=1+1", 2**40, 0.1),
    ('a "b"\t\x1b', 0, None),
    ("é", -1, 1 / 3),
    ("NA", 3, -0.0),
    ("", 4, 1e-9),
]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_ROWS_PER_GROUP", 2)
    monkeypatch.setattr(tables, "ROWS_PER_PART", 4)


def write(out: Path) -> None:
    check_table("x.out", out)
    with writing_table(out, COLUMNS) as rows:
        rows(ROWS[:3])
        rows(ROWS[3:])
        assert not [path for path in out.parent.glob(out.name) if path.name[0] != "."]


def test_text_is_safe_and_reads_back(tmp_path: Path) -> None:
    write(tmp_path / "a.tsv")
    with (tmp_path / "a.tsv").open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file, delimiter="\t")) == [
            ["name", "size", "bits/base"],
            ["'=1+1", str(2**40), "0.100000"],
            ['a "b"\\x09\\x1b', "0", "NA"],
            ["é", "-1", "0.333333"],
            ["NA", "3", "-0.000000"],
            ["", "4", "0.000000"],
        ]


def test_parquet_has_types_nulls_and_text_as_it_is(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet")
    file = pq.ParquetFile(tmp_path / "a.parquet")
    assert file.schema_arrow.types == [pa.string(), pa.int64(), pa.float64()]
    assert file.schema_arrow.names == list(COLUMNS)
    assert [tuple(row.values()) for row in file.read().to_pylist()] == ROWS
    assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [2, 2, 1]
    write(tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


@pytest.mark.parametrize("suffix", ["tsv", "parquet"])
def test_parts_are_one_table(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / f"part-*.{suffix}")
    first, second = (tmp_path / f"part-0000{number}.{suffix}" for number in (0, 1))
    assert sorted(tmp_path.iterdir()) == [first, second]
    write(tmp_path / f"whole.{suffix}")
    if suffix == "parquet":
        assert pq.read_table(first).num_rows == 4
        assert pa.concat_tables(map(pq.read_table, (first, second))) == pq.read_table(
            tmp_path / "whole.parquet"
        )
        return
    header, *lines = (tmp_path / "whole.tsv").read_text().splitlines()
    assert first.read_text().splitlines() == [header, *lines[:4]]
    assert second.read_text().splitlines() == [header, *lines[4:]]


@pytest.mark.parametrize("name", ["a.tsv", "a.parquet", "*.tsv", "*.parquet"])
def test_nothing_is_written_if_a_row_fails(tmp_path: Path, name: str) -> None:
    def rows() -> Iterator[tuple[Cell, ...]]:
        yield from ROWS
        raise ValueError("a row")

    with pytest.raises(ValueError, match=r"^a row$"), writing_table(tmp_path / name, COLUMNS) as w:
        w(rows())
    assert not list(tmp_path.iterdir())


def test_an_empty_table_has_a_header(tmp_path: Path) -> None:
    for name in ("a.tsv", "a.parquet"):
        with writing_table(tmp_path / name, COLUMNS):
            pass
    assert (tmp_path / "a.tsv").read_text() == "name\tsize\tbits/base\n"
    assert pq.read_table(tmp_path / "a.parquet").column_names == list(COLUMNS)


def test_old_parts_never_stay_among_new_ones(tmp_path: Path) -> None:
    (tmp_path / ".part-1.tsv").touch()
    check_table("x.out", tmp_path / "part-*.tsv")
    (tmp_path / "part-7.tsv").touch()
    with pytest.raises(FileExistsError, match=r"^x\.out must be parts that do not exist yet, got "):
        check_table("x.out", tmp_path / "part-*.tsv")
    with pytest.raises(ValueError, match=r"^x\.out must have one \*, for the numbers"):
        check_table("x.out", tmp_path / "*-*.tsv")
    with pytest.raises(FileNotFoundError, match="existing folder"):
        check_table("x.out", tmp_path / "no" / "*.tsv")


def test_parquet_needs_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    check_table("x.out", tmp_path / "a.tsv")
    with pytest.raises(ValueError, match=r"x\.out .*a\.parquet must have .*\[parquet\]"):
        check_table("x.out", tmp_path / "a.parquet")
