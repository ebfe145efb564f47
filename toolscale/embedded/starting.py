"""The HTTP answers of `toolscale serve` until its service is there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from shared.service.http_server import HttpConfig

if TYPE_CHECKING:
    from starlette.requests import Request

    from query.server.listener import HttpListener

RETRY_AFTER_S = 1
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


class Startup:
    """The present step of the start; each is also passed to `show`."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self.doing = "starting"

    def begin(self, step: str) -> None:
        """Begin a step."""
        self.doing = step
        self._show(step)


@contextmanager
def answering(listener: HttpListener, startup: Startup, instance_id: str) -> Generator[None]:
    """Answer 503 with the present step on the listener until the block ends, and 200 at `/healthz`."""
    server = uvicorn.Server(HttpConfig(starting_app(startup, instance_id), grace_s=1))
    # uvicorn closes the socket that it gets; connections after its end wait for the service
    sockets = [listener.server_socket.dup()]
    thread = threading.Thread(target=server.run, args=(sockets,), name="toolscale starting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


def starting_app(startup: Startup, instance_id: str) -> Starlette:
    """Return the application: `/healthz`, with the instance id and the step, and 503 for every other path."""

    async def healthz(_: Request) -> JSONResponse:
        return JSONResponse({"status": "alive", "instance_id": instance_id, "starting": startup.doing})

    async def unavailable(_: Request) -> JSONResponse:
        body = {"status": "starting", "doing": startup.doing}
        return JSONResponse(body, status_code=503, headers={"Retry-After": str(RETRY_AFTER_S)})

    return Starlette(routes=[Route("/healthz", healthz), Route("/{path:path}", unavailable, methods=_METHODS)])
