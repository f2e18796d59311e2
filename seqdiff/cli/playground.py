"""``seqdiff playground``."""

from __future__ import annotations

import socket
from pathlib import Path

from seqdiff.cells import say
from seqdiff.cli.extensions import (
    command_line,
    find_mutagenesis,
    find_writer,
    sample_options,
)
from seqdiff.extras import require_extra

_HOST = "127.0.0.1"


def playground(run: Path, /, *, port: int = 8765, device: str | None = None) -> None:
    """Open a page on this machine to draw sequences and watch, score and mutate them.

    Only programs on this machine can open the page, and the page asks no other machine for
    anything. Ctrl-C ends it.

    Args:
        run: Run directory, name of a packaged model, or hub folder.
        port: Port of the page.
        device: cpu, cuda, ...; default: cuda if there is one, else cpu.

    Raises:
        ValueError: If the run cannot be used, the port is not free, or the extra is not installed.
    """
    for module in ("starlette", "uvicorn"):
        require_extra(module, "playground", "playground")
    with _listen(port) as listening:
        import uvicorn

        from seqdiff.playground import Hooks, Studio, build_app
        from seqdiff.run import choose_device, load

        trained = load(run, device=choose_device(device))
        hooks = Hooks(
            find_writer(Path(f"samples.{trained.datamodule.file_suffix}"), run),
            command_line,
            sample_options(run),
            find_mutagenesis(run),
        )
        app = build_app(Studio(trained, str(run), hooks))

        class Server(uvicorn.Server):
            async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
                app.state.jobs.stop()  # whose events would keep connections open
                await super().shutdown(sockets)

        say(f"seqdiff: the page is at http://{_HOST}:{port} (Ctrl-C ends it)", error=True)
        settings = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5)
        try:
            Server(settings).run(sockets=[listening])
        finally:
            app.state.jobs.wait()


def _listen(port: int) -> socket.socket:
    """Take a port of this machine, before slow work.

    Raises:
        ValueError: If it is not free.
    """
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((_HOST, port))
        listening.listen()
    except (OSError, OverflowError) as error:
        listening.close()
        reason = getattr(error, "strerror", None) or error
        raise ValueError(
            f"playground.port must be a free port, got {port} ({reason}); choose another, for "
            f"example --port {port + 1 if 1024 <= port < 65535 else 8766}"
        ) from error
    return listening
