"""``seqdiff fetch``: its output, and one-line errors."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from seqdiff.cli.app import main
from tests.genomics.archive_server import CONTENT, RIGHT, Server, server

__all__ = ["server"]


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run ``seqdiff fetch``; return its status, and its output or its error line."""

    def run(name: str, checksum: str = RIGHT) -> tuple[int, str]:
        status = main(["fetch", name, "--checksum", checksum, "--out", str(tmp_path / "out")])
        shown = capsys.readouterr()
        if status == 0:
            return status, shown.out.strip()
        *bar, line = shown.err.strip().splitlines()
        assert line.startswith("seqdiff: error: ") and shown.out == ""
        assert not any("error" in other for other in bar)
        return status, shown.err.strip()

    return run


def test_the_command_prints_the_file(
    server: Server, command: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    file = tmp_path / "out/genome.fa.gz"
    assert command(f"{server.url}?download=1#top") == (0, str(file))
    assert file.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("name", "checksum", "message"),
    [
        ("hg19", RIGHT, "fetch.name must be one of genomic_benchmarks, hg38 or a URL, got hg19"),
        ("ftp://x.org/a.fa", RIGHT, "a URL of http or https, got ftp://x.org/a.fa; many FTP"),
        ("gopher://x.org/a.fa", RIGHT, "a URL of http or https, got gopher://x.org/a.fa"),
        ("{server}/", RIGHT, "must be the URL of a file, got http"),
        ("{server}/..", RIGHT, "must be the URL of a file, got http"),
        ("{server}/.?x=/a.fa", RIGHT, "must be the URL of a file, got http"),
        ("http:///a.fa", RIGHT, "must be the URL of a file, got http:///a.fa"),
        ("http://[x/a.fa", RIGHT, "fetch.name must be a URL, got http://[x/a.fa"),
        ("{server}/a.fa", "md5:1", "fetch.checksum must be algorithm:digest"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_before_work(
    name: str,
    checksum: str,
    message: str,
    server: Server,
    command: Callable[..., tuple[int, str]],
    tmp_path: Path,
) -> None:
    place = server.url.removesuffix("/genome.fa.gz")
    status, line = command(name.replace("{server}", place), checksum)
    assert status == 2 and message in line
    assert line.startswith("seqdiff: error: "), "a bar was drawn for it"
    assert server.asked == [] and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("status", "message", "again"),
    [
        (404, "got 404 Not Found; check the address", False),
        (403, "got 403 Forbidden; check the address", False),
        (416, "got 416 Requested Range Not Satisfiable; check the address", False),
        (429, "got 429 Too Many Requests; try again later", True),
        (503, "got 503 Service Unavailable; try again later", True),
    ],
)
def test_a_refusal_is_not_taken_for_the_file(
    status: int,
    message: str,
    again: bool,
    server: Server,
    command: Callable[..., tuple[int, str]],
    tmp_path: Path,
) -> None:
    server.refusal = status
    got, line = command(server.url)
    assert got == 2 and message in line
    assert ("try again" in line) == again
    assert list((tmp_path / "out").iterdir()) == []


def test_a_refusal_leaves_what_there_is(
    server: Server, command: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    part = tmp_path / "out/genome.fa.gz.part"
    part.write_bytes(CONTENT[:1000])
    server.refusal = 503
    assert command(server.url)[0] == 2 and part.read_bytes() == CONTENT[:1000]
    server.refusal = None
    assert command(server.url)[0] == 0
    assert server.asked == ["bytes=1000-", "bytes=1000-"]


@pytest.mark.parametrize("place", ["gopher://x.org/a", "http://127.0.0.1:port/a"])
def test_a_way_that_leads_nowhere(
    place: str, server: Server, command: Callable[..., tuple[int, str]]
) -> None:
    server.moved = place
    status, line = command(server.url)
    assert status == 2 and "must lead to a file" in line and "again" not in line


def test_no_server_there(server: Server, command: Callable[..., tuple[int, str]]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        status, line = command(f"http://127.0.0.1:{free.getsockname()[1]}/a.fa")
    assert status == 2 and "got 0 bytes (ConnectionError" in line and "the command again" in line
