"""The benchmark of parallel tokenising at small size."""

import json
import os
from pathlib import Path

import pytest

from benchmarks import tokenising
from benchmarks.tokenising import Preparation, repeat_text
from text.corpora.documents import Reading, read_documents
from text.corpora.shards import TokenStore
from text.tokenizers.characters import ByteTokenizer

pytestmark = pytest.mark.slow

LINES = ["one line", "another line"]
SMALL = ["--pairs", "1", "--vocabulary", "none", "--characters", "1000", "--processes", "1", "2"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


def test_runs_and_records(source: Path, tmp_path: Path, capsys) -> None:
    path = tmp_path / "figures.json"
    tokenising.main([*SMALL, "--text", str(source), "--json", str(path)])
    assert "speed-up over 1 (over pairs)" in capsys.readouterr().out
    record = json.loads(path.read_text())
    one, two = record["results"]
    assert (one["processes"], two["processes"]) == (1, 2) and one["ratio"] == 1
    assert two["their_seconds"] == one["seconds"] and two["ratio"] > 0
    size = record["settings"]["bytes"]
    assert 1000 <= size < 1030
    assert two["bytes_per_second"] == pytest.approx(size / two["seconds"])


def test_the_corpus_has_no_line_twice(source: Path, tmp_path: Path) -> None:
    size = repeat_text(source, tmp_path / "c.txt", 90)
    lines = (tmp_path / "c.txt").read_text().splitlines()
    assert lines == [f"{i} {LINES[i % 2]}" for i in range(len(lines))] and len(lines) > 3
    assert size == (tmp_path / "c.txt").stat().st_size >= 90


def test_a_side_prepares_the_corpus_from_nothing(source: Path, tmp_path: Path) -> None:
    side = Preparation(source, "none", 1, tmp_path / "cache")
    side()
    (shard,) = (tmp_path / "cache").rglob("*.shard")
    before = side.digests()
    store = TokenStore([shard])
    found = [ByteTokenizer().decode(store.read(i, 0, int(n))) for i, n in enumerate(store.lengths)]
    assert found == LINES == list(read_documents(source, Reading("line")))
    os.utime(shard, (1, 1))
    side()
    assert shard.stat().st_mtime > 1 and side.digests() == before, "made anew"


def test_other_shards_are_refused(source: Path, monkeypatch, capsys) -> None:
    """The side with two processes loses a byte."""
    real = Preparation.__call__

    def lossy(self: Preparation) -> None:
        real(self)
        if self.processes == 2:
            for shard in self.cache.rglob("*.shard"):
                shard.write_bytes(shard.read_bytes()[:-1] + b"?")

    monkeypatch.setattr(Preparation, "__call__", lossy)
    with pytest.raises(SystemExit, match="2 processes made other shards than 1; nothing was timed"):
        tokenising.main([*SMALL, "--text", str(source)])
    assert "MB/s" not in capsys.readouterr().out


def test_bad_options(tmp_path: Path, source: Path, capsys) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        tokenising.main(["--text", "no.txt"])
    assert "tokenising: --text must be a file, got no.txt" in capsys.readouterr().err
    with pytest.raises(SystemExit, match=r"tokenising: .*vocab.bpe"):
        tokenising.main([*SMALL, "--text", str(source), "--vocabulary", str(tmp_path)])
