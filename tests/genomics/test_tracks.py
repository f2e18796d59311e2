"""Tracks of genomes: values of positions from bigWig and bedGraph files."""

import gzip
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genomics.data import FastaDataModule, HG38DataModule
from genomics.io import open_track, tracks
from seqdiff.data import Examples
from seqdiff.data.dataset import EvaluationSet
from tests.genomics.conftest import bed, random_dna

pybigtools = pytest.importorskip("pybigtools")

LENGTHS = {"a": 10, "b": 4}
VALUES = [("a", 0, 2, 1.5), ("a", 3, 5, -2.0), ("b", 1, 2, 7.0)]
NAN = np.nan


def text(values=VALUES) -> str:
    return "".join("\t".join(map(str, row)) + "\n" for row in values)


def write_bigwig(path: Path, lengths=LENGTHS, values=VALUES) -> Path:
    pybigtools.open(str(path), "w").write(lengths, iter(values))
    return path


def write_bedgraph(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def same(found: np.ndarray, wanted: list) -> bool:
    return found.dtype == np.float32 and np.array_equal(found, np.array(wanted), equal_nan=True)


# Reading


def test_every_format_holds_the_same_values(tmp_path: Path) -> None:
    written = "browser position a:1-9\ntrack type=bedGraph\n#chrom\n\nelse 5 9 3\n" + text()
    files = [
        write_bigwig(tmp_path / "t.bw"),
        write_bigwig(tmp_path / "t.bigWig"),
        write_bedgraph(tmp_path / "t.bedGraph", written),
        write_bedgraph(tmp_path / "t.bdg", written.replace("\t", " ")),
        tmp_path / "t.bg.gz",
    ]
    files[-1].write_bytes(gzip.compress(written.encode()))
    for file in files:
        track = open_track(file, LENGTHS, ["a", "b"])
        assert track.lengths == LENGTHS and track.path == file
        assert same(track.values("a", 0, 6), [1.5, 1.5, NAN, -2, -2, NAN])
        assert same(track.values("a", 1, 4), [1.5, NAN, -2])
        assert same(track.values("b", 0, 4), [NAN, 7, NAN, NAN])
        assert same(pickle.loads(pickle.dumps(track)).values("b", 1, 3), [7, NAN])


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.floats(-9, 9, width=32))),
    st.integers(0, 40),
    st.integers(1, 20),
)
def test_values_survive_a_bedgraph_file(tmp_path: Path, pieces, start: int, size: int) -> None:
    dense, rows, place = np.full(60 + 7 * len(pieces), NAN), [("a", 0, 1, 0.25)], 1
    dense[0] = 0.25
    for gap, length, value in pieces:
        rows.append(("a", place + gap, place + gap + length, value))
        dense[place + gap : place + gap + length] = value
        place += gap + length
    path = write_bedgraph(tmp_path / "t.bedgraph", text(rows))
    track = open_track(path, {"a": len(dense)}, ["a"])
    assert same(track.values("a", start, start + size), dense[start : start + size].tolist())


def test_a_bedgraph_file_is_converted_once_for_each_genome(tmp_path: Path, cache: Path) -> None:
    path = write_bedgraph(tmp_path / "t.bedgraph", text())
    for lengths, files in ((LENGTHS, 1), (LENGTHS, 1), ({"a": 10, "b": 5}, 2)):
        assert open_track(path, lengths, ["a"]).lengths == lengths
        assert len(list(cache.glob("*.bw"))) == files


def test_an_interrupted_conversion_leaves_nothing(tmp_path: Path, cache: Path, monkeypatch) -> None:
    def cut(*_: object):
        yield VALUES[0]
        raise KeyboardInterrupt

    path = write_bedgraph(tmp_path / "t.bedgraph", text())
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(tracks, "_bedgraph", cut)
        open_track(path, LENGTHS, ["a"])
    assert not list(cache.glob("*.bw"))
    assert same(open_track(path, LENGTHS, ["a"]).values("b", 1, 2), [7])


BAD = {
    "columns": ("a 0 2\n", r"t\.bedgraph:1: a bedGraph line must be .* got 'a 0 2'; correct it"),
    "more columns": ("a 0 2 1 +\n", r":1: a bedGraph line must be"),
    "a word": ("a 0 2 1\na 2 3 high\n", r":2: a bedGraph line must be .* got 'a 2 3 high'"),
    "infinity": ("a 0 2 inf\n", r"and a finite value, got 'a 0 2 inf'"),
    "an empty interval": ("a 2 2 1\n", r"a larger end and a finite value, got 'a 2 2 1'"),
    "a negative start": ("a -1 2 1\n", r"a bedGraph line must be"),
    "overlap": ("a 0 5 1\na 4 6 1\n", r":2: start must be at least 5, the end of the line before"),
    "disorder": ("a 0 1 1\nb 0 1 1\na 4 6 1\n", r":3: the lines of a must follow .* b in between"),
    "past the end": ("a 8 11 1\n", r":1: end must lie inside a, which has 10 bases, got 11; use"),
    "other names": ("chr1 0 1 1\n", r"must have a value on a chromosome of the FASTA file, a, b"),
    "nothing": ("", r"must have a value on a chromosome"),
    "a record less": ("a 0 1 1\n", r"must have values on 'b', got a; use the chromosome names"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_bedgraph_files_are_refused(name: str, tmp_path: Path, cache: Path) -> None:
    content, message = BAD[name]
    path = write_bedgraph(tmp_path / "t.bedgraph", content)
    with pytest.raises(ValueError, match=message):
        open_track(path, LENGTHS, ["a", "b"])
    assert name == "a record less" or not list(cache.glob("*.bw"))


def test_bad_files_are_refused(tmp_path: Path, capfd) -> None:
    with pytest.raises(FileNotFoundError, match=r"t\.bw: no such file; set data\.tracks"):
        open_track(tmp_path / "t.bw", LENGTHS, ["a"])
    whole = write_bigwig(tmp_path / "w.bw").read_bytes()
    path = tmp_path / "t.bw"
    for content in (b"", b"no bigWig" * 99):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"t\.bw: not a bigWig file; fetch it again"):
            open_track(path, LENGTHS, ["a"])
    assert capfd.readouterr().err == ""
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"t\.bw: not a readable bigWig file .*; fetch it"):
        open_track(path, LENGTHS, ["a"])
    packed = write_bedgraph(tmp_path / "t.bedgraph.gz", "")
    packed.write_bytes(gzip.compress(text().encode())[:-9])
    with pytest.raises(ValueError, match="the gzip file is truncated"):
        open_track(packed, LENGTHS, ["a"])
    packed.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not a readable bedGraph file"):
        open_track(packed, LENGTHS, ["a"])
    with pytest.raises(ValueError, match=r"the name of a track must end in \.bw, "):
        open_track(write_bedgraph(tmp_path / "t.wig", text()), LENGTHS, ["a"])


def test_a_damaged_block_is_named_when_it_is_read(tmp_path: Path) -> None:
    path = write_bigwig(tmp_path / "t.bw")
    whole = path.read_bytes()
    place = whole.index(b"\x78")  # the first byte of the compressed block of values
    path.write_bytes(whole[:place] + bytes(20) + whole[place + 20 :])
    track = open_track(path, LENGTHS, ["a"])
    with pytest.raises(ValueError, match=r"t\.bw: not a readable bigWig file .*; fetch it again"):
        track.values("a", 0, 4)


def test_a_track_of_another_genome_is_refused(tmp_path: Path) -> None:
    path = write_bigwig(tmp_path / "t.bw", {"a": 11, "b": 4})
    with pytest.raises(ValueError, match=r"a must have 10 bases as in the FASTA file, got 11; use"):
        open_track(path, LENGTHS, ["b", "a"])
    assert open_track(path, LENGTHS, ["b"]).lengths["a"] == 11, "not in use"


# Windows


@pytest.fixture
def data(tmp_path: Path, fasta: Callable[[str], Path]) -> FastaDataModule:
    """Three windows of 4 bases and two tracks, the second without a value of record a."""
    second = [("a", 9, 10, 0.0), ("b", 0, 4, 5.0)]
    return FastaDataModule(
        fasta(">a\nACGTTGCAAC\n>b\nGGGC\n"),
        4,
        bed=bed(tmp_path, "a\t0\t4\ttrain\na\t4\t8\tvalid\nb\t0\t4\ttest\n"),
        tracks={
            "one": write_bigwig(tmp_path / "1.bw"),
            "two": write_bedgraph(tmp_path / "2.bedgraph", text(second)),
        },
    )


def test_windows_hold_the_values_of_their_positions(data: FastaDataModule) -> None:
    assert data.signals == ["one", "two"] and data.signal_tracks
    found = {
        split: EvaluationSet(data.dataset(split))[0].signal.numpy()[0]
        for split in ("train", "valid", "test")
    }
    assert same(found["train"], [[1.5, NAN], [1.5, NAN], [NAN, NAN], [-2, NAN]])
    assert same(found["valid"], [[-2, NAN], [NAN, NAN], [NAN, NAN], [NAN, NAN]])
    assert same(found["test"], [[NAN, 5], [7, 5], [NAN, 5], [NAN, 5]])


def test_the_other_strand_reads_tracks_backwards(data: FastaDataModule) -> None:
    dataset = data.dataset("train")
    rows = Examples.read(dataset, np.array([0, 0]))
    turned = dataset.augment(rows, np.array([0.1, 0.9]))
    assert same(turned.signal[:, :, 0], [[-2, NAN, 1.5, 1.5], [1.5, 1.5, NAN, -2]])


def test_a_short_window_has_no_value_after_its_end(tmp_path: Path, fasta) -> None:
    """Record b goes on after position 3, so a twin that reads four positions finds 9."""
    path = write_bedgraph(tmp_path / "t.bedgraph", "b 0 9 9\n")
    rows = bed(tmp_path, "b\t0\t3\ttrain\nb\t4\t6\tvalid\n")
    data = FastaDataModule(fasta(">b\nGGGCCATTA\n"), 4, bed=rows, off_end="pad", tracks={"x": path})
    assert same(data.dataset("train").signals(np.array([0])), [[[9], [9], [9], [NAN]]])
    assert same(data.dataset("valid").signals(np.array([0])), [[[9], [9], [NAN], [NAN]]])


def test_without_tracks_there_are_no_signals(genome: Path) -> None:
    data = FastaDataModule(genome, 32, tracks={})
    assert data.signals is None and not data.signal_tracks
    assert data.dataset("train").signals(np.array([0])) is None


def test_every_process_opens_the_file_itself(tmp_path: Path, monkeypatch) -> None:
    """A process that shared the open file with its parent would share its position too."""
    track = open_track(write_bigwig(tmp_path / "t.bw"), LENGTHS, ["a"])
    assert track._reader is not None and track._reader[0] == os.getpid()
    opened = track._reader[1]
    assert same(track.values("a", 0, 3), [1.5, 1.5, NAN]) and track._reader[1] is opened
    monkeypatch.setattr(tracks, "os", SimpleNamespace(getpid=lambda: -1))
    assert same(track.values("a", 0, 3), [1.5, 1.5, NAN]) and track._reader[1] is not opened


def test_worker_processes_read_the_same_values(tmp_path: Path, fasta) -> None:
    """Workers that shared the position in the file with their parent would read other values."""
    size = 3000
    path = fasta(f">a\n{random_dna(size)}\n")
    values = [("a", i, i + 1, float(i)) for i in range(size)]
    track = write_bigwig(tmp_path / "t.bw", {"a": size}, values)
    alone, helped = (
        FastaDataModule(path, 30, batch_size=8, num_workers=n, tracks={"x": track}) for n in (0, 2)
    )
    helped.dataset("train").signals(np.array([0]))  # open in the parent
    loaders = alone.training_loader(), helped.training_loader()
    for _, one, two in zip(range(6), *loaders, strict=False):
        assert one.signal is not None and torch.equal(one.signal, two.signal)
        assert torch.isfinite(one.signal).all()


def test_records_of_every_file_need_values(tmp_path: Path, fasta) -> None:
    path, other = fasta(f">a\n{random_dna(400)}\n"), fasta(f">x\n{random_dna(300, 1)}\n")
    track = write_bigwig(tmp_path / "t.bw", {"a": 400}, [("a", 0, 9, 1.0), ("a", 9, 10, 2.0)])
    data = FastaDataModule(path, 20, test_fasta=other, tracks={"x": track})
    with pytest.raises(ValueError, match=r"t\.bw: must have values on 'x', got a; use the"):
        data.dataset("train")


def test_construction_opens_no_track(tmp_path: Path) -> None:
    absent = {"x": tmp_path / "absent.bw"}
    assert FastaDataModule("absent.fa", 64, tracks=absent).signals == ["x"]
    assert HG38DataModule("absent.fa", "absent.bed", 1024, tracks=absent).signals == ["x"]
    assert FastaDataModule.is_path("tracks", str(tmp_path))
