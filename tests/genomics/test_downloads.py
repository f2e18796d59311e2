"""Downloads from a local server that breaks off, and their checksums."""

from pathlib import Path

import pytest

from genomics.io import downloads
from genomics.io.downloads import fetch
from tests.genomics.archive_server import CONTENT, RIGHT, WRONG, Server, server

__all__ = ["server"]


def test_a_whole_transfer_is_checked_and_kept(server: Server, tmp_path: Path) -> None:
    file = fetch(server.url, RIGHT, tmp_path / "new")
    assert file == tmp_path / "new" / "genome.fa.gz"
    assert file.read_bytes() == CONTENT
    assert [p.name for p in file.parent.iterdir()] == ["genome.fa.gz"]


def test_a_broken_transfer_is_gone_on_with(server: Server, tmp_path: Path) -> None:
    server.stop_after = 300_000
    with pytest.raises(OSError, match=r"received whole.*run the command again to resume"):
        fetch(server.url, RIGHT, tmp_path)
    assert not (tmp_path / "genome.fa.gz").exists()
    kept = (tmp_path / "genome.fa.gz.part").read_bytes()
    assert 0 < len(kept) <= 300_000 and CONTENT.startswith(kept)
    server.stop_after = None
    assert fetch(server.url, RIGHT, tmp_path).read_bytes() == CONTENT
    assert server.asked == [None, f"bytes={len(kept)}-"], "began again instead of going on"
    assert not (tmp_path / "genome.fa.gz.part").exists()


def test_a_server_without_ranges_is_read_from_the_start(server: Server, tmp_path: Path) -> None:
    (tmp_path / "genome.fa.gz.part").write_bytes(CONTENT[:1000])
    server.ranges = False
    assert fetch(server.url, RIGHT, tmp_path).read_bytes() == CONTENT


def test_a_part_that_is_whole_needs_no_more_bytes(server: Server, tmp_path: Path) -> None:
    (tmp_path / "genome.fa.gz.part").write_bytes(CONTENT)
    assert fetch(server.url, RIGHT, tmp_path).read_bytes() == CONTENT


def test_a_wrong_checksum_keeps_nothing(server: Server, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must have the checksum sha256:000.*removed"):
        fetch(server.url, WRONG, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert server.asked == [None], "its length was known, so that nothing can be missing"


def test_a_damaged_part_is_found_out_and_not_gone_on_with(server: Server, tmp_path: Path) -> None:
    (tmp_path / "genome.fa.gz.part").write_bytes(b"x" * 1000)
    with pytest.raises(ValueError, match="must have the checksum"):
        fetch(server.url, RIGHT, tmp_path)
    assert fetch(server.url, RIGHT, tmp_path).read_bytes() == CONTENT


def test_what_is_there_is_given_without_the_network(server: Server, tmp_path: Path) -> None:
    (tmp_path / "genome.fa.gz").write_bytes(CONTENT)
    assert fetch(server.url, RIGHT, tmp_path).read_bytes() == CONTENT
    assert server.asked == []


def test_a_file_of_another_checksum_is_refused_and_left(server: Server, tmp_path: Path) -> None:
    (tmp_path / "genome.fa.gz").write_bytes(b"mine")
    with pytest.raises(ValueError, match="remove it to fetch it again"):
        fetch(server.url, RIGHT, tmp_path)
    assert (tmp_path / "genome.fa.gz").read_bytes() == b"mine"
    assert server.asked == []


@pytest.mark.parametrize("checksum", ["", "sha256:", "sha256:abc", "crc:" + "0" * 8, "0" * 64])
def test_no_checksum_no_download(checksum: str, server: Server, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"fetch\.checksum must be algorithm:digest"):
        fetch(server.url, checksum, tmp_path)
    assert server.asked == []


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="genomic_benchmarks, hg38 or a URL, got hg19"):
        fetch("hg19", RIGHT, tmp_path)


def test_a_file_that_is_there_is_hashed_once(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed, real = [], downloads._matches
    monkeypatch.setattr(downloads, "_matches", lambda f, c: hashed.append(f) or real(f, c))
    (tmp_path / "genome.fa.gz").write_bytes(CONTENT)
    fetch(server.url, RIGHT, tmp_path)
    assert hashed == [tmp_path / "genome.fa.gz"]


# Servers that do not send the length of the file


def test_a_cut_without_a_length_is_gone_on_with_at_once(server: Server, tmp_path: Path) -> None:
    server.length, server.stop_after = False, 600_000
    assert fetch(server.url, RIGHT, tmp_path).read_bytes() == CONTENT
    assert len(server.asked) == 2 and server.asked[0] is None
    assert [p.name for p in tmp_path.iterdir()] == ["genome.fa.gz"]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_cut_without_a_length_is_gone_on_with_once(
    ranges: bool, server: Server, tmp_path: Path
) -> None:
    """Each attempt gives another third of the file, or always the same third."""
    server.length, server.stop_after, server.ranges = False, 350_000, ranges
    with pytest.raises(ValueError, match="must have the checksum"):
        fetch(server.url, RIGHT, tmp_path)
    assert len(server.asked) == 2
    assert list(tmp_path.iterdir()) == []


def test_without_ranges_the_whole_is_not_sent_twice(server: Server, tmp_path: Path) -> None:
    server.length = server.ranges = False
    come: list[int] = []
    with pytest.raises(ValueError, match="must have the checksum"):
        fetch(server.url, WRONG, tmp_path, progress=lambda done, _: come.append(done))
    assert come == sorted(come) and come[-1] == len(CONTENT)


def test_without_a_length_a_whole_file_is_asked_for_once(server: Server, tmp_path: Path) -> None:
    server.length = False
    assert fetch(server.url, RIGHT, tmp_path).read_bytes() == CONTENT
    assert server.asked == [None]
    with pytest.raises(ValueError, match="must have the checksum"):
        fetch(server.url, WRONG, tmp_path / "wrong")
    assert server.asked == [None, None, f"bytes={len(CONTENT)}-"]
    assert list((tmp_path / "wrong").iterdir()) == []
