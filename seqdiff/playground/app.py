"""The server of the page: a few addresses that answer in JSON, and events of jobs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from seqdiff.files import parse_json
from seqdiff.playground.jobs import Jobs, describe
from seqdiff.playground.requests import Draw, Mutate, Predict, Score, read
from seqdiff.playground.studio import Studio

_PAGE = Path(__file__).with_name("page.html")
_SECONDS_BETWEEN_LOOKS = 0.03
_MOST_BYTES = 1_000_000
# The browser itself keeps the page from asking any other machine.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}


def build_app(studio: Studio) -> Starlette:
    """Build the application, an ASGI application with its jobs in ``state.jobs``.

    Args:
        studio: The run and what to do with it.
    """
    jobs = Jobs()
    works: dict[str, Callable[[Any], Any]] = {
        "draw": lambda body: studio.draw(read(Draw, body)),
        "score": lambda body: studio.score(read(Score, body)),
        "mutate": lambda body: studio.mutate(read(Mutate, body)),
    }
    page, about = _PAGE.read_text(encoding="utf-8"), studio.about()

    async def show(request: Request) -> Response:
        return HTMLResponse(page, headers=_HEADERS)

    async def tell(request: Request) -> Response:
        return JSONResponse(about, headers=_HEADERS)

    async def start(request: Request) -> Response:
        what, body = request.path_params["what"], await _body(request)
        if what not in works:
            raise ValueError(f"a job must be one of {', '.join(works)}, got {what!r}")
        work = await run_in_threadpool(works[what], body)
        return JSONResponse({"job": jobs.start(work).key})

    async def predict(request: Request) -> Response:
        wanted = read(Predict, await _body(request))

        def ask() -> dict[str, Any]:
            with jobs.turns:
                return studio.predict(wanted)

        return JSONResponse(await run_in_threadpool(ask))

    async def events(request: Request) -> Response:
        key = request.path_params["key"]
        jobs.find(key)

        async def follow() -> AsyncIterator[str]:
            with jobs.reading(key) as job:
                sent = 0
                while not jobs.closed:
                    last = job.finished  # before the events are read, so that none is missed
                    for event in job.events[sent:]:
                        yield f"data: {json.dumps(event, allow_nan=False)}\n\n"
                        sent += 1
                    if last:
                        return
                    await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)

        return StreamingResponse(follow(), media_type="text/event-stream", headers=_HEADERS)

    async def stop(request: Request) -> Response:
        jobs.find(request.path_params["key"]).stop()
        return JSONResponse({})

    routes = [
        Route("/", show),
        Route("/about", tell),
        Route("/predict", _answering(predict), methods=["POST"]),
        Route("/jobs/{what}", _answering(start), methods=["POST"]),
        Route("/jobs/{key}/events", _answering(events)),
        Route("/jobs/{key}/stop", _answering(stop), methods=["POST"]),
    ]
    # Other sites that a browser shows cannot name this one by a name of their own.
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
    app = Starlette(routes=routes, middleware=[hosts])
    app.state.jobs = jobs
    return app


def _answering(
    answer: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """Answer an error that the user can correct with its line.

    The status stays 200, because a browser writes any other into its console.
    """

    async def checked(request: Request) -> Response:
        try:
            return await answer(request)
        except (ValueError, TypeError) as error:
            return JSONResponse({"error": describe(error)})

    return checked


async def _body(request: Request) -> Any:
    """Read a request.

    Raises:
        ValueError: If it is no JSON, or too long.
    """
    # A page of another site may send a form, but no JSON without asking this server first.
    if request.headers.get("content-type") != "application/json":
        raise ValueError("a request must have the content type application/json")
    content = b""
    async for part in request.stream():
        content += part
        if len(content) > _MOST_BYTES:
            raise ValueError(f"a request must have at most {_MOST_BYTES:,} bytes; send less")
    return parse_json(content)
