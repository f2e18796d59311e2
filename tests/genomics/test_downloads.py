"""Downloads from a server on this machine that breaks off, and the checksums that guard them."""

import hashlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from genomics.downloads import fetch

CONTENT = bytes(range(256)) * 4096
RIGHT = "sha256:" + hashlib.sha256(CONTENT).hexdigest()
WRONG = "sha256:" + "0" * 64


class Server(ThreadingHTTPServer):
    """Sends ``CONTENT``; may break off after some bytes, or not know of ranges."""

    stop_after: int | None = None
    ranges = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/genome.fa.gz"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        first = 0
        if wanted and self.server.ranges:
            first = int(wanted.removeprefix("bytes=").rstrip("-"))
        if first >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(CONTENT) - first))
        self.end_headers()
        stop = self.server.stop_after
        self.wfile.write(CONTENT[first : None if stop is None else first + stop])
        if stop is not None:
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


def test_a_whole_transfer_is_checked_and_kept(server: Server, tmp_path: Path) -> None:
    file = fetch(server.url, RIGHT, tmp_path / "new")
    assert file == tmp_path / "new" / "genome.fa.gz"
    assert file.read_bytes() == CONTENT
    assert [p.name for p in file.parent.iterdir()] == ["genome.fa.gz"]


def test_a_broken_transfer_is_gone_on_with(server: Server, tmp_path: Path) -> None:
    server.stop_after = 300_000
    with pytest.raises(OSError, match=r"sent whole.*run it again to go on"):
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
