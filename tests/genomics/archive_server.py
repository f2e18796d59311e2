"""A local server that sends a file, correctly or not."""

import gzip
import hashlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

CONTENT = bytes(range(256)) * 4096
RIGHT = "sha256:" + hashlib.sha256(CONTENT).hexdigest()
WRONG = "sha256:" + "0" * 64


class Server(ThreadingHTTPServer):
    """Sends ``CONTENT``, correctly or not.

    Attributes:
        stop_after: Bytes after which the connection is closed.
        ranges: Whether it supports ranges.
        length: Whether it sends the length of the file.
        refusal: Status of an answer with a page instead.
        moved: Target of a redirect.
        asked: The range of each request.
    """

    stop_after: int | None = None
    ranges = True
    length = True
    refusal: int | None = None
    moved = ""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/genome.fa.gz"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers.get("Range")
        server.asked.append(wanted)
        if server.refusal is not None:
            self.send_error(server.refusal)
            return
        if server.moved:
            self.send_response(302)
            self.send_header("Location", server.moved)
            self.end_headers()
            return
        first = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and server.ranges else 0
        if first >= len(CONTENT):
            self.send_error(416)
            return
        content = CONTENT[first:]
        self.send_response(206 if first else 200)
        if "gzip" in self.headers.get("Accept-Encoding", ""):
            content = gzip.compress(content)
            self.send_header("Content-Encoding", "gzip")
        if server.length:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        stop = server.stop_after
        self.wfile.write(content[:stop])
        if stop is not None:
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
