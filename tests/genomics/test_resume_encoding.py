"""An interrupted encoding continues, and ends in the same file as an uninterrupted one."""

import gzip
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from Bio import bgzf

from genomics.io import fasta as fasta_module
from genomics.io import genome as genome_module
from genomics.io.fasta import Place, read_encoded
from genomics.io.genome import Genome, load_genome
from genomics.sequence import decode
from seqdiff.files import alone

TEXT = ">first one\nACGTN\r\nacg\n>b\nTTRACGTACGTTTGACA\nGG\n\n>third\nACCA\nTGACCATAGGAC\n"
BASES = 5 + 3 + 17 + 2 + 4 + 12


def write_plain(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def write_gzip(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()))
    return path


def write_blocks(path: Path, text: str) -> Path:
    with bgzf.BgzfWriter(path) as stream:
        for first in range(0, len(text), 11):
            stream.write(text[first : first + 11].encode())
            stream.flush()
    return path


WAYS = (write_plain, write_gzip, write_blocks)


class Watched:
    """Replaces ``read_encoded``; can interrupt it, and remembers where it began."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self.bases = 0
        self.stop_after: int | None = None

    def __call__(
        self, path: Path, on_progress: Callable[[int], object], place: Place
    ) -> Iterator[tuple[str, bytes]]:
        self.began.append(place.offset)
        self.bases = 0
        for number, (name, piece) in enumerate(read_encoded(path, on_progress, place)):
            if number == self.stop_after:
                raise KeyboardInterrupt
            self.bases += len(piece)
            yield name, piece


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Encode in chunks of seven bytes, and note the place after each."""
    reader = Watched()
    monkeypatch.setattr(genome_module, "read_encoded", reader)
    monkeypatch.setattr(genome_module, "_PIECE", 1)
    monkeypatch.setattr(fasta_module, "_CHUNK", 7)
    return reader


def only(folder: Path, suffix: str) -> Path:
    (found,) = folder.glob(f"*{suffix}")
    return found


def interrupt(path: Path, watched: Watched, after: int) -> None:
    watched.stop_after = after
    with pytest.raises(KeyboardInterrupt):
        load_genome(path)
    watched.stop_after = None


@pytest.mark.parametrize("write", WAYS)
def test_an_interrupted_encoding_continues_at_every_place(tmp_path, cache, watched, write) -> None:
    path = write(tmp_path / "x.fa", TEXT)
    load_genome(path)
    whole = only(cache, ".dna").read_bytes()
    pieces, late = 0, 0
    while True:
        only(cache, ".dna").unlink()
        watched.stop_after = pieces
        try:
            load_genome(path)
        except KeyboardInterrupt:
            pass
        else:
            break
        assert not list(cache.glob("*.dna"))
        with pytest.raises(ValueError, match="damaged or was cut short"):
            Genome(only(cache, ".partial"), "")
        state = list(cache.glob("*.finished"))
        done = json.loads(state[0].read_bytes())["place"] if state else vars(Place())
        watched.stop_after = None
        load_genome(path)
        assert watched.began[-1] == done["offset"]
        assert watched.bases == BASES - done["bases"]
        late += watched.began[-1] > len(TEXT) // 2
        assert only(cache, ".dna").read_bytes() == whole
        assert not list(cache.glob("*.partial")) + list(cache.glob("*.finished"))
        pieces += 1
    assert pieces > 8 and late > 3


@pytest.mark.parametrize("write", WAYS)
def test_reading_begins_at_any_byte_of_the_text(tmp_path, monkeypatch, write) -> None:
    monkeypatch.setattr(fasta_module, "_CHUNK", 1)
    path, text = write(tmp_path / "x.fa", TEXT), TEXT.encode()
    # Only plain gzip is decompressed from the start; bgzip is from the start of a block.
    step = {write_plain: 1, write_gzip: len(text) + 1, write_blocks: 11}[write]
    for offset in range(len(text) + 1):
        chunks = [chunk for chunk, _ in fasta_module._chunks(path, offset)]
        assert b"".join(chunks) == text[offset:]
        skipped = offset % step if offset < len(text) or write is not write_blocks else 0
        assert chunks.count(b"") == skipped


def test_a_killed_process_leaves_what_it_finished(tmp_path, cache, watched) -> None:
    path = write_plain(tmp_path / "x.fa", TEXT)
    code = """
import os, signal, sys
from genomics.io import fasta, genome
genome._PIECE, fasta._CHUNK, read = 1, 7, genome.read_encoded
def killed(*arguments):
    for number, piece in enumerate(read(*arguments)):
        if number == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        yield piece
genome.read_encoded = killed
genome.load_genome(sys.argv[1])
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    genome = load_genome(path)
    assert watched.began[0] > len(TEXT) // 2
    assert decode(genome.record("b")) == "TTNACGTACGTTTGACAGG"
    continued = only(cache, ".dna").read_bytes()
    only(cache, ".dna").unlink()
    load_genome(path)
    assert watched.began[-1] == 0
    assert only(cache, ".dna").read_bytes() == continued


def cut(partial: Path, finished: Path) -> None:
    partial.write_bytes(partial.read_bytes()[:-20])


def damage(partial: Path, finished: Path) -> None:
    data = bytearray(partial.read_bytes())
    data[70] ^= 1
    partial.write_bytes(data)


def drop(partial: Path, finished: Path) -> None:
    partial.unlink()


def garble(partial: Path, finished: Path) -> None:
    finished.write_bytes(finished.read_bytes()[:-5])


def rename_key(partial: Path, finished: Path) -> None:
    finished.write_bytes(finished.read_bytes().replace(b"at_line_start", b"at_start"))


def other_format(partial: Path, finished: Path) -> None:
    finished.write_bytes(finished.read_bytes().replace(b"SEQDNA01", b"SEQDNA00"))


@pytest.mark.parametrize("spoil", [cut, damage, drop, garble, rename_key, other_format])
def test_a_partial_file_that_does_not_fit_is_not_continued(tmp_path, cache, watched, spoil) -> None:
    path = write_plain(tmp_path / "x.fa", TEXT)
    load_genome(path)
    whole = only(cache, ".dna").read_bytes()
    only(cache, ".dna").unlink()
    interrupt(path, watched, 9)
    spoil(only(cache, ".partial"), only(cache, ".finished"))
    load_genome(path)
    assert watched.began == [0, 0, 0]
    assert only(cache, ".dna").read_bytes() == whole


def test_a_file_with_other_content_is_not_continued(tmp_path, cache, watched) -> None:
    path = write_plain(tmp_path / "x.fa", TEXT)
    interrupt(path, watched, 9)
    write_plain(path, TEXT.replace("ACGTN", "TTTTT"))
    assert decode(load_genome(path).ids[:8]) == "TTTTTACG"
    assert watched.began == [0, 0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (">b again\nAC\n", r"x\.fa:11: two records are named 'b', the first on line 4"),
        (">c\nAC!\n", r"x\.fa:12: record 'c': .*'!' at offset 2 "),
        (">c\n", r"x\.fa:11: record 'c' has no bases"),
    ],
)
def test_a_continued_encoding_knows_its_lines_and_an_error_ends_it(
    tmp_path, cache, watched, line, message
) -> None:
    path = write_plain(tmp_path / "x.fa", TEXT + line)
    interrupt(path, watched, 9)
    with pytest.raises(ValueError, match=message):
        load_genome(path)
    assert watched.began[-1] > len(TEXT) // 2
    assert not [left for left in cache.iterdir() if left.suffix not in {".lock", ".digest"}]


def test_a_second_process_waits_and_encodes_nothing(tmp_path, cache) -> None:
    path = write_plain(tmp_path / "x.fa", TEXT)
    load_genome(path)
    cached, lock = only(cache, ".dna"), only(cache, ".lock")
    cached.unlink()
    code = (
        "import sys; from genomics.io import genome; genome._encode = None; "
        "print(genome.load_genome(sys.argv[1]).names)"
    )
    with alone(lock):
        other = subprocess.Popen(
            [sys.executable, "-c", code, str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert other.stderr is not None
        said = other.stderr.readline()
        genome_module._encode(path, cached)
    assert said == "seqdiff: waiting for another process that is encoding x.fa\n"
    assert other.communicate(timeout=60)[0] == "('first', 'b', 'third')\n"


def test_log_files_get_the_bases_per_second(tmp_path, watched, monkeypatch, capsys) -> None:
    monkeypatch.setattr(genome_module, "_BAR_FROM_BYTES", 0)
    monkeypatch.setattr("seqdiff.progress._SECONDS", 0.0)
    path = write_plain(tmp_path / "x.fa", TEXT)
    interrupt(path, watched, 9)
    capsys.readouterr()
    monkeypatch.setattr(genome_module, "_LONG_SECONDS", 0.0)
    seconds = iter(range(0, 10_000_000, 10))  # ten seconds pass between two looks at the clock
    monkeypatch.setattr(genome_module.time, "monotonic", lambda: next(seconds))
    load_genome(path)
    lines = capsys.readouterr().err.splitlines()
    size = len(TEXT)
    assert lines[0].startswith(f"reading x.fa: {size} of {size}")
    encoding = [line for line in lines if line.startswith("encoding x.fa: ")]
    assert f"{size} of {size}  0.0 M bases/s" in encoding[-1]
    assert lines[-1].startswith(f"seqdiff: encoded x.fa: {watched.bases} bases in ")
    assert watched.bases < BASES
